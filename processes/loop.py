"""A step that is repeated at messages and at beat's ticks, and by itself without them: beat, the broker and
notifications may be frozen or away, so no step depends on them alone.
"""

from collections.abc import Callable
from threading import Event, Lock, Thread
from time import monotonic

import structlog
from sqlalchemy.exc import SQLAlchemyError

from models.connections.database_errors import is_away, lacks_resources, why_nothing_is_stored

# A step that takes longer than this counts as hanging: the process stops its pulses, and its supervisor restarts it.
# The planner's first step with 100,000 queued rows takes less, and so does the slowest encoder for one chunk. Not
# tuned.
HANGS_AFTER_S = 120.0

log = structlog.get_logger()


class Loop:
    """Runs one step at a time, in the caller's thread or, without a call for `every_s`, in its own thread."""

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        every_s: float,
        *,
        retry_s: float | None = None,
        expected: tuple[type[Exception], ...] = (SQLAlchemyError,),
        stop_within_s: float = 0.0,
    ) -> None:
        """`every_s` should be longer than a tick, so that a late tick is not mistaken for a missing one.

        An error of `work` is logged, with its traceback unless it is `expected`; the next step then comes within
        `retry_s` if that is given. `stop` waits for a running step at most `stop_within_s`.
        """
        self._name, self._work, self._every_s = name, work, every_s
        self._retry_s, self._expected, self._stop_within_s = retry_s, expected, stop_within_s
        self._running = Lock()
        self._due_at = monotonic() + every_s
        self._sooner = Event()  # set if the next step is due sooner, or the loop should stop
        self._busy_since: float | None = None
        self._failures = 0  # steps that failed one after another, until now
        self._error = ""  # the error of the last failed step
        self._stopping = False

    def start(self) -> None:
        """Start the thread that runs due steps; it lives as long as the process."""
        Thread(target=self._step_when_due, name=f"loop: {self._name}", daemon=True).start()

    def step(self) -> None:
        """Do one step now, or as soon as a running step has ended."""
        with self._running:
            self._step()

    def stop(self) -> None:
        """Begin no further step; returns once the running one has ended, or after `stop_within_s` seconds."""
        self._stopping = True
        self._sooner.set()
        self._running.acquire(timeout=self._stop_within_s)  # never released, so that no step begins any more

    def step_within(self, seconds: float) -> None:
        """Let the next step begin after `seconds` at the latest."""
        due_at = monotonic() + seconds
        if due_at < self._due_at:
            self._due_at = due_at
            self._sooner.set()

    def step_every(self, every_s: float) -> None:
        """From now on, step without a call every `every_s` seconds."""
        self._every_s = every_s
        self.step_within(every_s)

    def report_progress(self) -> None:
        """Count the running step as begun now, so that a long step with progress does not count as hanging."""
        if self._busy_since is not None:
            self._busy_since = monotonic()

    @property
    def busy_s(self) -> float:
        """Seconds since the running step began or last reported progress; 0 while none runs."""
        since = self._busy_since
        return 0.0 if since is None else monotonic() - since

    @property
    def failure(self) -> str | None:
        """The last error in one line, if two steps in a row failed: one failure may only be a planner's lost lead."""
        return self._error if self._failures > 1 else None

    @property
    def hangs(self) -> bool:
        """Whether the running step has made no progress for HANGS_AFTER_S."""
        return self.busy_s > HANGS_AFTER_S

    def _step(self) -> None:
        now = monotonic()
        self._busy_since, self._due_at = now, now + self._every_s
        try:
            self._work()
            self._failures = 0
        except Exception as error:  # an error must not prevent the next step
            if not is_away(error) or lacks_resources(error):  # the database's absence is reported by other means
                first = next(iter(str(error).splitlines()), "") or type(error).__name__
                self._error = why_nothing_is_stored(error) or first
                self._failures += 1
            if isinstance(error, self._expected):
                log.error(f"{self._name} failed", error=str(error))
            else:
                log.exception(f"{self._name} failed")
            if self._retry_s is not None:
                self.step_within(self._retry_s)
        finally:
            self._busy_since = None

    def _step_when_due(self) -> None:
        while not self._stopping:
            left_s = self._due_at - monotonic()
            if left_s > 0:
                self._sooner.wait(left_s)
                self._sooner.clear()
                continue
            with self._running:
                if self._due_at <= monotonic():  # otherwise a caller's thread has stepped meanwhile
                    self._step()
