"""Sums what rows in a server have cost, as an engine's figures: what a server computes beside its tokens is unknown."""

from collections.abc import Sequence

from inference.remote.remote_row import RemoteRow
from inference.sequences import RunFigures


class StreamFigures:
    """The running sums since the engine was last empty."""

    def __init__(self) -> None:
        self._size = self._length = self._iterations = self._generation_length = self._tokens = self._peak_tokens = 0
        self._counted_at: float | None = None
        self._busy_s = 0.0

    def count(self, rows: Sequence[RemoteRow], now: float) -> None:
        """Count what these rows have gained since they were last counted; an iteration is a token of the fastest."""
        gained = [(row, row.tokens - row.accounted) for row in rows]
        for row, tokens in gained:
            row.accounted += tokens
        most = max((tokens for _, tokens in gained), default=0)
        self._iterations += max(0, most)
        self._tokens += sum(tokens for _, tokens in gained)  # a row that starts anew gives its tokens back
        self._size = max(self._size, len(rows))
        lengths = [len(row.sequence.prompt_ids) for row in rows]
        self._length = max([self._length, *lengths])
        self._generation_length = max([self._generation_length, *(row.tokens for row in rows)])
        self._peak_tokens = max(self._peak_tokens, sum(lengths) + sum(row.tokens for row in rows))
        if self._counted_at is not None and rows:
            self._busy_s += now - self._counted_at
        self._counted_at = now

    def figures(self) -> RunFigures:
        """The sums so far; tokens in place of bytes."""
        return RunFigures(
            size=self._size,
            length=self._length,
            iterations=self._iterations,
            generation_length=self._generation_length,
            valid_tokens=max(0, self._tokens),
            pad_tokens=0,
            invalid_tokens=0,
            peak_kv_bytes=self._peak_tokens,
            prefill_s=0.0,
            decode_s=self._busy_s,
        )
