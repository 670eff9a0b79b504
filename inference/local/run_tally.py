"""Counts what a run costs while it runs."""

from collections.abc import Sequence

from inference.sequences import RunFigures


class RunTally:
    """The running sums behind RunFigures."""

    def __init__(self) -> None:
        self.iterations = self.longest = 0
        self.prefill_s = 0.0
        self.prefilled_tokens = 0
        self._size = self._length = self._valid = self._pad = self._computed = self._peak = 0
        self._decode_s = 0.0

    def held(self, kv_bytes: int) -> None:
        """The cache holds so many bytes now."""
        self._peak = max(self._peak, kv_bytes)

    def prefilled(self, lengths: Sequence[int], seconds: float) -> None:
        """One padded prefill gave rows of these lengths their first token."""
        padded = len(lengths) * max(lengths)
        self._length = max(self._length, *lengths)
        self._pad += padded - sum(lengths)
        self.prefilled_tokens += padded
        self.prefill_s += seconds
        self._turned(len(lengths), len(lengths))

    def decoded(self, rows: int, running: int, seconds: float) -> None:
        """One decoding step over so many rows gave a token to those that were running."""
        self._decode_s += seconds
        self._turned(rows, running)

    def _turned(self, rows: int, running: int) -> None:
        self.iterations += 1
        self._size = max(self._size, rows)
        self._computed += rows
        self._valid += running

    def figures(self) -> RunFigures:
        """The sums as they are now."""
        return RunFigures(
            size=self._size,
            length=self._length,
            iterations=self.iterations,
            generation_length=self.longest,
            valid_tokens=self._valid,
            pad_tokens=self._pad,
            invalid_tokens=self._computed - self._valid,
            peak_kv_bytes=self._peak,
            prefill_s=self.prefill_s,
            decode_s=self._decode_s,
        )
