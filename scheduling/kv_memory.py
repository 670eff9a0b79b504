"""The memory of the KV cache: Magnus Eq. (1) and (5), SCLS Eq. (5)-(9); rectangular as in the papers, or paged."""

import sys
from dataclasses import dataclass, replace

import numpy as np

from scheduling.costs import Floats, Ints

# Each running row will have grown by these tokens when a joiner's first iteration is over: one token in the iteration
# that is under way when the decision is made, and one in the iteration that the joiner takes part in.
ROW_GROWTH_TOKENS = 2
# More than any model's positions. A row can have this many tokens if all layers have a window.
MOST_TOKENS = 2**31 - 1


def held_tokens(
    tokens: Floats, rows: Ints | Floats | int, windowed_share: Floats | float, window_tokens: Floats | int
) -> Floats:
    """Return `KvMemory.held` for each element of the arguments, which are broadcast against each other."""
    behind_windows = np.maximum(0.0, tokens - rows * window_tokens)
    return np.asarray(tokens - windowed_share * behind_windows, np.float64)


@dataclass(frozen=True, slots=True)
class KvMemory:
    """Θ, the bytes that a worker's KV cache may fill, and Δ, the bytes of one token.

    Rectangular memory holds rows times the tokens of the longest row; `paged` memory holds the sum over rows, each in
    blocks of `block_tokens`. Run-to-completion batches are rectangles in both. At most `max_rows` rows run at once.
    Layers with a window take `windowed_bytes` of Δ, and hold only the newest `window_tokens` tokens of a row. Raises
    ValueError if Θ is negative, if Δ, `block_tokens` or `max_rows` is not positive, or if `windowed_bytes` exceeds Δ.
    """

    theta_bytes: int
    delta_bytes: int
    paged: bool = False
    block_tokens: int = 1
    max_rows: int | None = None
    windowed_bytes: int = 0
    window_tokens: int = 0

    def __post_init__(self) -> None:
        if self.theta_bytes < 0 or self.delta_bytes < 1:
            raise ValueError(
                f"Θ must not be negative and Δ must be positive, got {self.theta_bytes} and {self.delta_bytes}"
            )
        if self.block_tokens < 1 or self.most_rows < 1:
            raise ValueError(f"a block has a token and a worker a row, got {self.block_tokens} and {self.max_rows}")
        if not 0 <= self.windowed_bytes <= self.delta_bytes or self.window_tokens < 0:
            raise ValueError(f"no window of {self.window_tokens} tokens for {self.windowed_bytes} bytes of a token")

    @property
    def capacity_tokens(self) -> int:
        """Return the tokens that fit at once, padding included, if all layers hold them."""
        return self.theta_bytes // self.delta_bytes

    def sharing(self, tokens: int) -> "KvMemory":
        """Return the memory as policies see it while its rows share `tokens` tokens, each of which it holds once.

        Policies count every row with all of its tokens, so the tokens that need no memory of their own are added to Θ.
        """
        return replace(self, theta_bytes=self.theta_bytes + tokens * self.delta_bytes) if tokens else self

    @property
    def windowed_share(self) -> float:
        """Return the share of Δ that is in layers with a window."""
        return self.windowed_bytes / self.delta_bytes

    @property
    def longest_row_tokens(self) -> int:
        """Return the tokens of the longest row that fits alone."""
        return self.tokens_within(1)

    def tokens_within(self, rows: int) -> int:
        """Return how many tokens fit at once in `rows` rows, padding included; at most `MOST_TOKENS`."""
        everywhere_bytes = self.delta_bytes - self.windowed_bytes
        left_bytes = self.theta_bytes - rows * self.window_tokens * self.windowed_bytes
        behind_windows = left_bytes // everywhere_bytes if everywhere_bytes else MOST_TOKENS * (left_bytes >= 0)
        return max(self.capacity_tokens, min(behind_windows, MOST_TOKENS))

    def held(self, tokens: float, rows: int = 1) -> float:
        """Return the memory of `rows` rows with `tokens` tokens and pads in all, in tokens that all layers hold."""
        return tokens - self.windowed_share * max(0, tokens - rows * self.window_tokens)

    @property
    def row_overhead_tokens(self) -> float:
        """Return the memory that a row takes beyond its own tokens, in tokens: half of its last block on average."""
        return (self.block_tokens - 1) / 2 if self.paged else 0.0

    @property
    def most_rows(self) -> int:
        """Return `max_rows`, or a number above any worker's rows if rows are not limited."""
        return sys.maxsize if self.max_rows is None else self.max_rows

    def rows_tokens(self, rows: int, longest: int, total: int) -> float:
        """Return the tokens that `rows` rows take; the longest has `longest` tokens, all together have `total`."""
        return self.held(total + rows * self.row_overhead_tokens if self.paged else rows * longest, rows)

    def batch_bytes(self, size: int, length: int, generation_length: int) -> int:
        """Return the bytes of a batch, Magnus Eq. (5): each row holds the batch length and generation length."""
        tokens = length + generation_length
        behind_window = max(0, tokens - self.window_tokens)
        return size * (tokens * self.delta_bytes - behind_window * self.windowed_bytes)

    def fits(self, size: int, length: int, generation_length: int) -> bool:
        """Return whether a batch of this size and these lengths stays within Θ and `max_rows`."""
        return self.batch_bytes(size, length, generation_length) <= self.theta_bytes and size <= self.most_rows

    def fixed_batch_size(self, max_length: int, max_generation_length: int) -> int:
        """Return ⌊Θ / ((Lmax + Gmax)·Δ)⌋, Magnus Eq. (1); at least one, at most the worker's rows."""
        size = self.theta_bytes // self.batch_bytes(1, max_length, max_generation_length)
        return min(max(1, size), self.most_rows)
