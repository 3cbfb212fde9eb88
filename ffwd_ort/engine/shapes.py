"""Encode shapes: the fixed power-of-two sizes in which a model is ever run."""

from dataclasses import dataclass

SHORTEST_SEQ = 16


@dataclass(frozen=True, order=True)
class EncodeShape:
    """`rows` rows of `seq` tokens; both are powers of two."""

    rows: int
    seq: int

    @property
    def tokens(self) -> int:
        """Tokens computed in a step of this shape, padding included."""
        return self.rows * self.seq


def power_of_two_at_least(n: int) -> int:
    """Return the smallest power of two that is not below n (n >= 1)."""
    return 1 << (n - 1).bit_length()


def power_of_two_at_most(n: int) -> int:
    """Return the largest power of two that is not above n (n >= 1)."""
    return 1 << (n.bit_length() - 1)


def seq_ladder(cap: int) -> tuple[int, ...]:
    """Return the row lengths for texts of up to `cap` tokens: 16, 32, … up to the power of two that holds cap."""
    top = max(SHORTEST_SEQ, power_of_two_at_least(cap))
    return tuple(1 << bit for bit in range(SHORTEST_SEQ.bit_length() - 1, top.bit_length()))


def step_bytes(shape: EncodeShape, *, hidden: int, intermediate: int, heads: int, span: int, slots: int) -> int:
    """Estimate the float32 activations alive at the widest point of a step.

    `span` is how many scores a token keeps in each head, `slots` how many vectors a row has room for. There are
    eight hidden-wide tensors (residual, fused q/k/v, attention's output, the norm's) and the MLP's two, or
    attention's scores and probabilities for every head: the two are never alive together, but the arena keeps
    both.
    """
    linear = shape.tokens * (8 * hidden + 2 * intermediate)
    scores = 2 * shape.tokens * heads * span
    pool = shape.tokens * slots
    return 4 * (linear + scores + pool)
