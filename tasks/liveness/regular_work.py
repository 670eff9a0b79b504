"""Work that is done at beat's ticks, and by itself while no tick comes: beat or the broker may be frozen or away."""

from collections.abc import Callable
from threading import Event, Lock, Thread
from time import monotonic

import structlog

# Work that takes longer than this hangs: the process then stops its pulses, and its supervisor starts another. Longer
# than the planner's first step with 100,000 queued rows and than the slowest encoder needs for one chunk. Not tuned.
HANGS_AFTER_S = 120.0

log = structlog.get_logger()


class RegularWork:
    """Runs `work` when it is called, one call at a time, and by itself once nothing called it for `silent_s`."""

    def __init__(self, name: str, work: Callable[[], None], silent_s: float) -> None:
        """`silent_s` should be longer than a tick, so that a late tick is not mistaken for a missing one."""
        self._name, self._work, self._silent_s = name, work, silent_s
        self._running = Lock()
        self._due_at = monotonic() + silent_s
        self._sooner = Event()  # the work became due sooner, or is to stop
        self._busy_since: float | None = None
        self._stopping = False

    def __call__(self) -> None:
        """Do the work now, after whoever does it already."""
        with self._running:
            self._do()

    def start(self) -> None:
        """Begin to work when it is due, in a thread of its own that lives as long as the process."""
        Thread(target=self._work_when_due, name=f"missing ticks of {self._name}", daemon=True).start()

    def work_within(self, seconds: float) -> None:
        """Once, work by itself after so many seconds, unless it is called or due before."""
        due_at = monotonic() + seconds
        if due_at < self._due_at:
            self._due_at = due_at
            self._sooner.set()

    def work_every(self, silent_s: float) -> None:
        """From now on, work by itself after so long a silence."""
        self._silent_s = silent_s
        self.work_within(silent_s)

    def stop(self, within_s: float) -> None:
        """Begin nothing more, and return once what runs has ended, or after `within_s` seconds."""
        self._stopping = True
        self._sooner.set()
        self._running.acquire(timeout=within_s)  # and never release it

    def got_on(self) -> None:
        """The present work got on: with much to do it may last, and does not hang."""
        if self._busy_since is not None:
            self._busy_since = monotonic()

    @property
    def busy_s(self) -> float:
        """How long the present work has lasted, or since it got on; 0 while there is none."""
        since = self._busy_since
        return 0.0 if since is None else monotonic() - since

    @property
    def works(self) -> bool:
        """Whether it is idle, or has been at work for a sensible time only."""
        return self.busy_s < HANGS_AFTER_S

    def _do(self) -> None:
        now = monotonic()
        self._busy_since, self._due_at = now, now + self._silent_s
        try:
            self._work()
        finally:
            self._busy_since = None

    def _work_when_due(self) -> None:
        while not self._stopping:
            left_s = self._due_at - monotonic()
            if left_s > 0:
                self._sooner.wait(left_s)
                self._sooner.clear()
                continue
            try:
                with self._running:
                    if self._due_at <= monotonic():  # else somebody called it meanwhile
                        self._do()
            except Exception:  # the next time must come all the same
                log.exception("work failed", work=self._name)
