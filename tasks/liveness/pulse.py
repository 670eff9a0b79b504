"""A process's sign of life to the supervisor that started it: a byte every two seconds through a pipe.

A frozen process writes nothing. One that hangs stops writing by itself: it asks its own work whether it goes on. Pipes
need no disk, no network and no clock.
"""

import contextlib
import os
from collections.abc import Callable
from threading import Event, Thread

PULSE_FD = "PULSE_FD"  # the environment variable with the pipe's descriptor, set by `cli/hosting/signs_of_life.py`
# Far below the 10 s of silence that a supervisor bears. Not tuned otherwise.
PULSE_EVERY_S = 2.0


class Pulse(Thread):
    """A thread that writes as long as `works()` is true; without a supervisor it ends at once."""

    def __init__(self, works: Callable[[], bool]) -> None:
        super().__init__(name="pulse", daemon=True)
        self._works = works
        self._pipe = os.environ.get(PULSE_FD)

    def run(self) -> None:
        """Write until the process ends."""
        if self._pipe is None:
            return
        pause = Event()
        while True:
            if self._works():
                with contextlib.suppress(OSError):  # a full pipe, or a supervisor that is gone
                    os.write(int(self._pipe), b".")
            pause.wait(PULSE_EVERY_S)
