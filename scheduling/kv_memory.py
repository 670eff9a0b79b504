"""Memory of the KV cache: Magnus Eq. (1) and (5), SCLS Eq. (5)-(9); rectangular as in the papers, or paged."""

import sys
from dataclasses import dataclass

# Tokens by which the running rows will have grown when a joiner's first iteration is over: one in the iteration that is
# under way when the decision is made, one in the iteration that the joiner takes part in.
ROW_GROWTH_TOKENS = 2


@dataclass(frozen=True, slots=True)
class KvMemory:
    """Θ, the bytes that a worker's KV cache may fill, and Δ, the bytes of one token.

    Rectangular memory holds rows times the tokens of the longest row; `paged` memory holds the sum over rows, each in
    blocks of `block_tokens`. Run-to-completion batches are rectangles in both. At most `max_rows` rows run at once.
    Raises ValueError if Θ is negative, or if Δ, `block_tokens` or `max_rows` is not positive.
    """

    theta_bytes: int
    delta_bytes: int
    paged: bool = False
    block_tokens: int = 1
    max_rows: int | None = None

    def __post_init__(self) -> None:
        if self.theta_bytes < 0 or self.delta_bytes < 1:
            raise ValueError(
                f"Θ must not be negative and Δ must be positive, got {self.theta_bytes} and {self.delta_bytes}"
            )
        if self.block_tokens < 1 or self.most_rows < 1:
            raise ValueError(f"a block has a token and a worker a row, got {self.block_tokens} and {self.max_rows}")

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit at once, padding included."""
        return self.theta_bytes // self.delta_bytes

    @property
    def row_overhead_tokens(self) -> float:
        """The memory that a row takes beyond its own tokens, in tokens: on average half of its last block is empty."""
        return (self.block_tokens - 1) / 2 if self.paged else 0.0

    @property
    def most_rows(self) -> int:
        """`max_rows`, or a number above any worker's rows if they are not limited."""
        return sys.maxsize if self.max_rows is None else self.max_rows

    def rows_tokens(self, rows: int, longest: int, total: int) -> float:
        """Return the tokens that `rows` rows take; the longest has `longest` tokens, all together have `total`."""
        return total + rows * self.row_overhead_tokens if self.paged else rows * longest

    def batch_bytes(self, size: int, length: int, generation_length: int) -> int:
        """Return the bytes of a batch, Magnus Eq. (5): each row holds the batch length and generation length."""
        return size * (length + generation_length) * self.delta_bytes

    def fits(self, size: int, length: int, generation_length: int) -> bool:
        """Return whether a batch of this size and these lengths stays within Θ and `max_rows`."""
        return self.batch_bytes(size, length, generation_length) <= self.theta_bytes and size <= self.most_rows

    def fixed_batch_size(self, max_length: int, max_generation_length: int) -> int:
        """Return ⌊Θ / ((Lmax + Gmax)·Δ)⌋, Magnus Eq. (1); at least one, at most the worker's rows."""
        size = self.theta_bytes // ((max_length + max_generation_length) * self.delta_bytes)
        return min(max(1, size), self.most_rows)
