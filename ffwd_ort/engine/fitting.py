"""Fit encode shapes to the memory there is: a smaller step first, then shorter rows.

The figures are a model of what a step holds (shapes.step_bytes); warm-up runs what its time allows and so checks it.
"""

from dataclasses import dataclass, replace
from itertools import takewhile

from ffwd_ort.bundle import Manifest
from ffwd_ort.engine.machine import Memory
from ffwd_ort.engine.packing import TOKENS_PER_CHUNK, Packing
from ffwd_ort.engine.shapes import SHORTEST_SEQ, EncodeShape, step_bytes

BY_MEMORY = "fitted to memory"


@dataclass(frozen=True)
class Room:
    """Bytes for the shapes of one worker's label, and what they are a share of."""

    bytes: int
    share: float  # of the memory, over all workers
    memory: Memory

    def __str__(self) -> str:
        limit = f"{self.memory.bytes / 2**30:.1f} GiB ({self.memory.bound_by})"
        return f"{max(self.bytes, 0) >> 20} MiB under --memory-utilization {self.share:g} of {limit}"


def fit(packing: Packing, manifest: Manifest, room: int) -> Packing:
    """Return as much of a packing as fits `room` bytes; its ladder is empty if no row does.

    One row always makes a step, so long rows are dropped only where one alone does not fit.
    """

    def fits(rows: int, seq: int) -> bool:
        return room > _bytes(packing, manifest, EncodeShape(rows, seq))

    # A text goes into the shortest row that holds it: without one in the middle, into one far too long for it.
    seqs = tuple(takewhile(lambda seq: fits(1, seq), packing.seqs))
    fitted = replace(packing, seqs=seqs)
    while fitted.budget > SHORTEST_SEQ and not all(fits(fitted.max_rows(seq), seq) for seq in seqs):
        fitted = replace(fitted, budget=max(SHORTEST_SEQ, fitted.budget // 2))
    return fitted


def largest(packing: Packing, manifest: Manifest) -> int:
    """Return the bytes that the packing's most demanding step is reckoned to hold."""
    return max(_bytes(packing, manifest, EncodeShape(packing.max_rows(seq), seq)) for seq in packing.seqs)


def _bytes(packing: Packing, manifest: Manifest, shape: EncodeShape) -> int:
    long, sizes = packing.is_long(shape.seq), manifest.sizes
    # A long row holds one text: the vectors of a document's chunks at most, else one or a few.
    many = packing.tokens_per_slot == TOKENS_PER_CHUNK or not long
    return step_bytes(
        shape,
        hidden=sizes.hidden,
        intermediate=sizes.intermediate,
        heads=sizes.heads,
        span=manifest.span if long else shape.seq,
        slots=packing.slots(shape.seq) if many else len(manifest.pooling),
    )
