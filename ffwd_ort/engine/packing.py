"""Pack texts into encode steps: choose a shape and what goes into its rows, then lay out the arrays.

Both halves are pure functions of their arguments.
"""

from bisect import bisect_right
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ffwd_ort.engine.sequences import Floats, Ids, Sequence
from ffwd_ort.engine.shapes import EncodeShape, power_of_two_at_least, power_of_two_at_most

Array = npt.NDArray[np.generic]
# Rows shorter than this hold one text: a lone query takes the smallest row that holds it.
SHARED_SEQ = 64
# Tokens for each result vector a row has room for: two special tokens and little else still pack.
TOKENS_PER_SLOT = 4
# In documents of chunks, where one token stands beside one separator.
TOKENS_PER_CHUNK = 2
# Rows longer than this hold one text each, at its own length, where the graph has the long form of attention.
LONG_FROM = 1024
# How many longer row lengths are tried besides the shortest that holds the longest text.
WIDER = 3
# What a step costs besides its tokens, as tokens: dispatch and the Python around it.
STEP_OVERHEAD = 24


@dataclass(frozen=True, slots=True)
class Item:
    """What packing knows of a text: its tokens and how many vectors it makes."""

    length: int
    slots: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """A shape, the vectors that each row has room for and, for each row, the indices of the items in it.

    `long`: the one text in it is run at its own length, in the long form of attention.
    """

    shape: EncodeShape
    slots: int
    rows: tuple[tuple[int, ...], ...]
    long: bool = False


@dataclass(frozen=True, slots=True)
class Packing:
    """What bounds a step: the ladder of row lengths, the token budget, and how cost grows with row length.

    `attention_seq` is the row length at which attention costs as much as the linear layers. `most_texts`
    bounds the texts of a step; None leaves that to the tokens. `has_long_form`: rows above LONG_FROM are long.
    Unless it `packs`, no row ever holds two texts. `wider` longer rows than needed are tried for a step.
    """

    seqs: tuple[int, ...]
    budget: int
    attention_seq: float
    most_texts: int | None = None
    tokens_per_slot: int = TOKENS_PER_SLOT
    has_long_form: bool = False
    packs: bool = True
    wider: int = WIDER

    def is_long(self, seq: int) -> bool:
        """Tell whether a row of this length, or a text, is run in the long form: one text at its own length."""
        return self.has_long_form and seq > LONG_FROM

    def shares(self, seq: int) -> bool:
        """Tell whether a row of this length may hold more than one text."""
        return self.packs and seq >= SHARED_SEQ and not self.is_long(seq)

    def slots(self, seq: int) -> int:
        """Return how many vectors a row of this length has room for."""
        return seq // self.tokens_per_slot

    def max_rows(self, seq: int) -> int:
        """Return the most rows of this length that a step may have; one always fits."""
        return 1 if self.is_long(seq) else power_of_two_at_most(max(1, self.budget // seq))

    def shapes(self) -> list[EncodeShape]:
        """List every shape a plan can have, largest first."""
        shapes = [EncodeShape(1 << r, s) for s in self.seqs for r in range(self.max_rows(s).bit_length())]
        return sorted(shapes, key=lambda shape: (shape.tokens * shape.seq, shape.rows), reverse=True)

    def cost(self, shape: EncodeShape) -> float:
        """Estimate a step's time, in units of one token through the linear layers."""
        return STEP_OVERHEAD + shape.tokens * (1 + shape.seq / self.attention_seq)


def plan_step(first: Seq[Item], more: Seq[Item], packing: Packing) -> Plan:
    """Choose the step that does the most real tokens for its cost.

    `first` are the items whose turn it is, in order; the first of them is always placed. `more` fills the
    gaps and the rows left over. Indices in the plan count through `first` and then `more`. Items that are
    not in the plan wait for another step. Raises ValueError if an item is too much for the longest row.
    """
    items = [*first, *more]
    # A long text is a step of its own, and a short one never goes into a long row: tokens that nothing is to see
    # would be seen there.
    alone = packing.is_long(first[0].length)
    turn = [0] if alone else [i for i in range(len(first)) if not packing.is_long(items[i].length)]
    longest = max(items[i].length for i in turn)
    slots = max(items[i].slots for i in turn)
    fitting = [seq for seq in packing.seqs if seq >= longest and packing.slots(seq) >= slots]
    if not fitting:
        raise ValueError(f"a text of {longest} tokens and {slots} vectors does not fit a row of {packing.seqs[-1]}")
    wider = [seq for seq in fitting[1 : 1 + packing.wider] if seq <= packing.budget and not packing.is_long(seq)]
    # Shortest first, so that the largest filler that fits a gap is found by bisection.
    fillers = sorted(range(len(first), len(items)), key=lambda i: items[i].length)
    plans = [_fill(items, turn, [] if alone else fillers, seq, packing) for seq in (fitting[0], *wider)]
    return max(plans, key=lambda plan: _tokens(plan, items) / packing.cost(plan.shape))


def _tokens(plan: Plan, items: Seq[Item]) -> int:
    return sum(items[i].length for row in plan.rows for i in row)


class _Row:
    """One row being filled: what is in it and the room left."""

    __slots__ = ("members", "slots", "tokens")

    def __init__(self, seq: int, slots: int) -> None:
        self.members: list[int] = []
        self.tokens = seq
        self.slots = slots

    def takes(self, item: Item, shared: bool) -> bool:
        room = item.length <= self.tokens and item.slots <= self.slots
        return room and (shared or not self.members)

    def add(self, index: int, item: Item) -> None:
        self.members.append(index)
        self.tokens -= item.length
        self.slots -= item.slots


def _fill(items: Seq[Item], turn: Seq[int], fillers: Seq[int], seq: int, packing: Packing) -> Plan:
    long = packing.is_long(seq)
    shared = packing.shares(seq)
    rows: list[_Row] = []
    most, slots = packing.max_rows(seq), packing.slots(seq)
    left = packing.most_texts or len(items)
    for index in turn[:left]:
        row = next((row for row in rows if row.takes(items[index], shared)), None)
        if row is None:
            if len(rows) == most:
                continue
            row = _Row(seq, slots)
            rows.append(row)
        row.add(index, items[index])
        left -= 1
    waiting = list(fillers)
    lengths = [items[i].length for i in waiting]
    opened = 0
    while opened < most and (opened < len(rows) or waiting):
        if opened == len(rows):
            rows.append(_Row(seq, slots))
        row = rows[opened]
        opened += 1
        while left and (shared or not row.members):
            place = bisect_right(lengths, row.tokens) - 1
            if place < 0 or not row.takes(items[waiting[place]], shared):
                break
            lengths.pop(place)
            row.add(waiting[place], items[waiting.pop(place)])
            left -= 1
        if not row.members:
            rows.pop()
            break
    rows = rows[: power_of_two_at_most(len(rows))]
    if long:  # no room for what is not there: a pooling matrix of 16384 tokens is 256 MiB
        slots = power_of_two_at_least(max(1, items[rows[0].members[0]].slots))
    return Plan(EncodeShape(len(rows), seq), slots, tuple(tuple(row.members) for row in rows), long)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a text's vectors come out: `count` of them in one row, from `first` on. They are slots, or tokens."""

    item: int
    row: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class EncodeStep:
    """The arrays of one run (DESIGN.md section 3) and where each text is in them.

    In the long form seq is the text's length.
    """

    shape: EncodeShape
    input_ids: Ids  # [rows, seq]
    position_ids: Ids  # [rows, seq], restarts at each text
    segment_ids: Ids  # [rows, seq], -1 is padding, -2 - s sees as s does and is seen by none
    token_type_ids: Ids  # [rows, seq]
    pool: Floats  # [rows, slots, seq]
    packed: Array  # bool, scalar: not the long form
    placements: tuple[Placement, ...]

    def feeds(self, inputs: Seq[str] = ("input_ids", "position_ids", "segment_ids", "pool")) -> dict[str, Array]:
        """Name the arrays of the graph's inputs."""
        return {name: getattr(self, name) for name in inputs}


@dataclass(frozen=True, slots=True)
class Positions:
    """How a model numbers tokens: from `offset`; with `skip_pad`, a pad token in a text has position `pad_id`."""

    pad_id: int = 0
    offset: int = 0
    skip_pad: bool = False

    def of(self, ids: Ids) -> Ids:
        """Return the position id of each token of one text."""
        if not self.skip_pad:
            return np.arange(self.offset, self.offset + len(ids), dtype=np.int32)
        real = ids != self.pad_id
        numbered = np.cumsum(real, dtype=np.int32) - 1 + self.offset
        return np.where(real, numbered, np.int32(self.pad_id)).astype(np.int32)


def lay_out(plan: Plan, sequences: Seq[Sequence], positions: Positions) -> EncodeStep:
    """Write the arrays of a plan; `sequences` are indexed as the plan's items were."""
    rows, seq = plan.shape.rows, plan.shape.seq
    if plan.long:
        seq = sequences[plan.rows[0][0]].length
    input_ids = np.full((rows, seq), positions.pad_id, np.int32)
    position_ids = np.full((rows, seq), positions.offset, np.int32)
    segment_ids = np.full((rows, seq), -1, np.int32)
    token_type_ids = np.zeros((rows, seq), np.int32)
    pool = np.zeros((rows, plan.slots, seq), np.float32)
    placements = []
    for row, members in enumerate(plan.rows):
        start = slot = 0
        for segment, item in enumerate(members):
            sequence = sequences[item]
            end = start + sequence.length
            input_ids[row, start:end] = sequence.ids
            position_ids[row, start:end] = positions.of(sequence.ids)
            segment_ids[row, start:end] = segment
            if sequence.unseen:
                segment_ids[row, end - sequence.unseen : end] = -2 - segment
            if sequence.token_types is not None:
                token_type_ids[row, start:end] = sequence.token_types
            where = (slot, len(sequence.slots)) if sequence.slots else (start, sequence.length)
            placements.append(Placement(item, row, *where))
            for weights in sequence.slots:
                pool[row, slot, start:end][weights.span] = weights.weights
                slot += 1
            start = end
    packed = np.array(not plan.long)
    tokens = (input_ids, position_ids, segment_ids, token_type_ids)
    return EncodeStep(plan.shape, *tokens, pool, packed, tuple(placements))
