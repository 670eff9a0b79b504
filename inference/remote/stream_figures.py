"""The cost of rows in a server, measured from their streams: an engine's figures, and samples of iterations."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from inference.remote.remote_row import RemoteRow
from inference.sequences import RunFigures


class StreamFigures:
    """Sums since the engine was last empty, from which `figures` makes RunFigures."""

    def __init__(self) -> None:
        self._size = self._length = self._iterations = self._generation_length = self._tokens = self._peak_tokens = 0
        self._counted_at: float | None = None
        self._busy_s = 0.0

    def count(self, rows: Sequence[RemoteRow], now: float) -> None:
        """Counts the tokens generated since the last call; the largest number of any row counts as iterations."""
        gained = [(row, row.tokens - row.accounted) for row in rows]
        for row, tokens in gained:
            row.accounted += tokens
        most = max((tokens for _, tokens in gained), default=0)
        self._iterations += max(0, most)
        self._tokens += sum(tokens for _, tokens in gained)  # negative for a row that restarts without its tokens
        self._size = max(self._size, len(rows))
        lengths = [len(row.sequence.prompt_ids) for row in rows]
        self._length = max([self._length, *lengths])
        self._generation_length = max([self._generation_length, *(row.tokens for row in rows)])
        self._peak_tokens = max(self._peak_tokens, sum(lengths) + sum(row.tokens for row in rows))
        if self._counted_at is not None and rows:
            self._busy_s += now - self._counted_at
        self._counted_at = now

    def figures(self) -> RunFigures:
        """Returns the figures so far, with memory in tokens instead of bytes."""
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


# The number of samples that are kept, which cover some minutes: more of them average more noise, fewer follow changes
# of the server sooner. Not tuned.
KEPT = 256
# Bounds of a window in seconds: shorter windows have too few tokens, in longer ones the number of rows changes. Not
# tuned.
LEAST_S, MOST_S = 0.3, 5.0


@dataclass(frozen=True, slots=True)
class StepSample:
    """A window of `seconds` in which a server computed `steps` iterations of `rows` rows without a pause.

    Each read `cached` tokens a row; prefills computed `prefilled` tokens.
    """

    seconds: float
    steps: float
    rows: float
    cached: float
    prefilled: int


class StepSamples:
    """Samples of the last windows; `observe` must be called regularly with the rows in the server."""

    def __init__(self) -> None:
        self.samples: deque[StepSample] = deque(maxlen=KEPT)
        self._at: float | None = None
        self._tokens: dict[str, int] = {}

    def observe(self, rows: Sequence[RemoteRow], now: float) -> None:
        """Ends a window and begins the next one."""
        sample = self._sample(rows, now)
        if sample is not None:
            self.samples.append(sample)
        self._at = now
        self._tokens = {row.sequence.id: row.tokens for row in rows if row.first_token_at is not None}

    def _sample(self, rows: Sequence[RemoteRow], now: float) -> StepSample | None:
        """Returns the sample of the window, or None if no row decoded from its beginning to its end."""
        if self._at is None or not LEAST_S <= now - self._at <= MOST_S:
            return None
        began = self._at
        through = [row for row in rows if row.sequence.id in self._tokens]
        gained = sum(row.tokens - self._tokens[row.sequence.id] for row in through)
        if gained <= 0:
            return None
        joined = [row for row in rows if row.first_token_at is not None and row.first_token_at > began]
        decoding = (len(self._tokens) + sum(row.first_token_at is not None for row in rows)) / 2
        cached = sum(len(row.sequence.prompt_ids) + row.tokens for row in through) / len(through)
        prefilled = sum(len(row.sequence.prompt_ids) + len(row.sequence.generated_ids) for row in joined)
        return StepSample(now - began, gained / len(through), decoding, cached, prefilled)
