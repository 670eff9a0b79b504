"""Measures the cost of rows in a server by their streams, as an engine's figures and as windows of iterations."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from inference.engine_requests import RunFigures
from inference.remote.remote_row import RemoteRow
from scheduling.costs import StepWindow


class StreamFigures:
    """The `figures` since the engine was last empty, with memory in tokens instead of bytes."""

    def __init__(self) -> None:
        self.figures = RunFigures()
        self._tokens = 0
        self._counted_at: float | None = None

    def count(self, rows: Sequence[RemoteRow], now: float) -> None:
        """Counts the tokens generated since the last call; the largest number of any row counts as iterations."""
        most = 0
        for row in rows:
            gained = row.tokens - row.accounted
            row.accounted += gained
            self._tokens += gained  # negative for a row that restarts without its tokens
            most = max(most, gained)
        before, lengths, tokens = self.figures, [len(row.sequence.prompt_ids) for row in rows], [r.tokens for r in rows]
        self.figures = replace(
            before,
            size=max(before.size, len(rows)),
            length=max([before.length, *lengths]),
            iterations=before.iterations + most,
            generation_length=max([before.generation_length, *tokens]),
            valid_tokens=max(0, self._tokens),
            peak_kv_bytes=max(before.peak_kv_bytes, sum(lengths) + sum(tokens)),
            decode_s=before.decode_s + (now - self._counted_at if self._counted_at is not None and rows else 0.0),
        )
        self._counted_at = now


# `take` returns at most this many windows, the newest ones, which cover some minutes. Not tuned.
KEPT = 256
# Bounds of a window in seconds: shorter windows have too few tokens, in longer ones the number of rows changes. Not
# tuned.
LEAST_S, MOST_S = 0.3, 5.0


class StepSamples:
    """Windows in which a server decoded without a pause; `observe` must be called regularly with the server's rows.

    They count as if rows read only their own tokens, and as if prefills beside iterations had no fixed cost.
    """

    def __init__(self) -> None:
        self._closed: deque[StepWindow] = deque(maxlen=KEPT)
        self._at: float | None = None
        self._tokens: dict[str, int] = {}

    def observe(self, rows: Sequence[RemoteRow], now: float) -> None:
        """Ends a window and begins the next one."""
        window = self._window(rows, now)
        if window is not None:
            self._closed.append(window)
        self._at = now
        self._tokens = {row.sequence.id: row.tokens for row in rows if row.first_token_at is not None}

    def take(self) -> list[StepWindow]:
        """Removes and returns the windows that ended since the last call, in any thread."""
        return [self._closed.popleft() for _ in range(len(self._closed))]

    def _window(self, rows: Sequence[RemoteRow], now: float) -> StepWindow | None:
        """Returns the window, or None if no row decoded from its beginning to its end."""
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
        steps = gained / len(through)
        row_steps = steps * decoding
        return StepWindow(now - began, now, prefilled, row_reads=row_steps * cached, row_steps=row_steps, steps=steps)
