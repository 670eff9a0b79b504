"""Sums what a run costs while it runs."""

from collections.abc import Sequence

from inference.sequences import RunFigures


class RunTally:
    """The running sums behind RunFigures."""

    def __init__(self) -> None:
        self.iterations = 0
        self._generation_length = 0
        self.prefill_s = 0.0
        self.prefilled_tokens = 0
        self._size = self._length = self._valid_tokens = self._pad_tokens = 0
        self._computed_tokens = 0  # valid and invalid ones
        self._peak_kv_bytes = 0
        self._decode_s = 0.0

    def count_memory(self, kv_bytes: int) -> None:
        """The cache now holds so many bytes."""
        self._peak_kv_bytes = max(self._peak_kv_bytes, kv_bytes)

    def count_prefill(self, lengths: Sequence[int], seconds: float) -> None:
        """One padded prefill computed prompts of these lengths and gave each row a token."""
        padded = len(lengths) * max(lengths)
        self._length = max(self._length, *lengths)
        self._pad_tokens += padded - sum(lengths)
        self.prefilled_tokens += padded
        self.prefill_s += seconds
        self._count_iteration(len(lengths), len(lengths))

    def count_decode(self, rows: int, running: int, seconds: float) -> None:
        """One decoding step computed a token for each of `rows` rows, of which `running` had not finished."""
        self._decode_s += seconds
        self._count_iteration(rows, running)

    def count_finished(self, new_tokens: int) -> None:
        """A row finished by itself after so many tokens."""
        self._generation_length = max(self._generation_length, new_tokens)

    def _count_iteration(self, rows: int, running: int) -> None:
        self.iterations += 1
        self._size = max(self._size, rows)
        self._computed_tokens += rows
        self._valid_tokens += running

    def figures(self) -> RunFigures:
        """The sums so far."""
        return RunFigures(
            size=self._size,
            length=self._length,
            iterations=self.iterations,
            generation_length=self._generation_length,
            valid_tokens=self._valid_tokens,
            pad_tokens=self._pad_tokens,
            invalid_tokens=self._computed_tokens - self._valid_tokens,
            peak_kv_bytes=self._peak_kv_bytes,
            prefill_s=self.prefill_s,
            decode_s=self._decode_s,
        )
