"""Counts what the engine computes and how long it takes, for a whole run and for short windows. Imports no torch."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields

from inference.engine_requests import RunFigures
from scheduling.costs import StepWindow

FIGURES = [field.name for field in fields(RunFigures)]


@dataclass(slots=True)
class RunTally:
    """Sums over a run, from which `figures` makes RunFigures, whose fields have the same names."""

    size: int = 0
    length: int = 0
    iterations: float = 0.0
    generation_length: int = 0
    valid_tokens: int = 0
    pad_tokens: int = 0
    invalid_tokens: int = 0
    peak_kv_bytes: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    guessed_tokens: int = 0
    right_guesses: int = 0
    prefilled_tokens: int = 0

    def count_memory(self, kv_bytes: int) -> None:
        """Counts the bytes that the cache holds now."""
        self.peak_kv_bytes = max(self.peak_kv_bytes, kv_bytes)

    def count_prefill(self, lengths: Sequence[int], joined: int, seconds: float) -> None:
        """Counts a padded prefill of prompts, or parts of prompts, of these lengths; `joined` rows got a token."""
        padded = len(lengths) * max(lengths)
        self.length = max(self.length, *lengths)
        self.pad_tokens += padded - sum(lengths)
        self.prefilled_tokens += padded
        self.prefill_s += seconds
        if joined:
            self._count_iteration(joined, joined)

    def count_joiner(self, length: int) -> None:
        """Counts a row of `length` tokens that joins while others run."""
        self.length = max(self.length, length)

    def count_joining(self, tokens: int, seconds: float) -> None:
        """Counts that part of a decoding step that computed tokens of joining rows' prompts."""
        self.prefilled_tokens += tokens
        self.prefill_s += seconds
        self.decode_s -= seconds

    def count_decode(self, rows: int, running: int, seconds: float, guessed: int = 0, right: int = 0) -> None:
        """Counts a decoding step of `rows` rows; the `running` ones among them had not finished and got a token each.

        Together they also got `right` of the `guessed` tokens. The step counts as one iteration plus the mean number of
        right guesses of a running row.
        """
        self.decode_s += seconds
        self.guessed_tokens += guessed
        self.right_guesses += right
        self._count_iteration(rows, running)
        if right:
            self.iterations += right / running
            self.valid_tokens += right

    def count_finished(self, new_tokens: int) -> None:
        """Counts a row that finished after `new_tokens` tokens."""
        self.generation_length = max(self.generation_length, new_tokens)

    def _count_iteration(self, rows: int, running: int) -> None:
        self.iterations += 1
        self.size = max(self.size, rows)
        self.valid_tokens += running
        self.invalid_tokens += rows - running

    def figures(self) -> RunFigures:
        """Returns the figures of the run so far."""
        return RunFigures(**{name: getattr(self, name) for name in FIGURES} | {"iterations": round(self.iterations)})


# A window of iterations ends when the number of rows changes, after MOST_STEPS iterations, or after MOST_S seconds.
# Longer windows average out more noise of the clock, shorter ones separate more loads. Not tuned.
MOST_STEPS = 16
MOST_S = 0.25
KEPT = 1024  # the most windows that are kept until `take`, the newest ones; any value above some seconds of steps works


class StepLog:
    """Sums of steps over windows of time, from which costs are learned; instants are those of `perf_counter`.

    The cached tokens of a step are those of the longest row, or of the mean row if memory is paged. A window begins at
    the end of the previous step, so that it includes the time between two steps. The engine's thread counts; another
    thread may call `take` and read `shared_tokens`.
    """

    def __init__(self) -> None:
        self.shared_tokens = 0  # tokens that rows shared with others at the last step: the cache holds each once
        self._closed: deque[StepWindow] = deque(maxlen=KEPT)
        self._window: StepWindow | None = None
        self._began_at = 0.0  # when the window began
        self._rows = 0  # the number of rows, the same in each iteration of the window
        self._last_end: float | None = None  # when the last step ended; None while no row is running

    def count_prefill(self, rows: int, length: int, began_at: float, now: float) -> None:
        """Counts a padded prefill of `rows` rows and `length` columns as a separate window."""
        self._close()
        window = self._begin(began_at)
        window.prefilled_tokens, window.prefilled_rows = rows * length, rows
        window.prefilled_lengths, window.prefills = length, 1
        self._end_of_step(window, now)
        self._close()

    def count_decode(
        self, rows: int, cached: float, began_at: float, now: float, tokens: float = 1, joining: Sequence[int] = ()
    ) -> None:
        """Counts an iteration of `rows` rows, each of which read `cached` tokens of the cache.

        The mean row got `tokens` tokens, more than one if guesses were right; it counts as that many iterations,
        because the end of an answer is predicted from the cost of a row's token. `joining` has the numbers of prompt
        tokens computed for joining rows: such an iteration is a window of its own, but no prefill, because it lacks a
        prefill's fixed cost.
        """
        if rows != self._rows or joining:
            self._close()
        window = self._window or self._begin(began_at)
        self._rows = rows
        window.row_reads += tokens * rows * cached
        window.row_steps += tokens * rows
        window.reads += tokens * cached
        window.steps += tokens
        window.prefilled_tokens, window.prefilled_rows = sum(joining), len(joining)
        self._end_of_step(window, now)
        if joining or window.steps >= MOST_STEPS or window.seconds >= MOST_S:
            self._close()

    def pause(self) -> None:
        """Ends the window because no row is running; the time until the next step belongs to no window."""
        self._close()
        self._last_end, self.shared_tokens = None, 0

    def take(self) -> list[StepWindow]:
        """Removes and returns the windows that ended since the last call."""
        return [self._closed.popleft() for _ in range(len(self._closed))]

    def _begin(self, began_at: float) -> StepWindow:
        self._began_at = began_at if self._last_end is None else self._last_end
        self._window = StepWindow(0.0, self._began_at)
        return self._window

    def _end_of_step(self, window: StepWindow, now: float) -> None:
        window.seconds, window.at, self._last_end = now - self._began_at, now, now

    def _close(self) -> None:
        if self._window is not None:
            self._closed.append(self._window)
        self._window, self._rows = None, 0
