"""The turns of a process's calls on its CPU: while a call waits for another process, other calls have its turn."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Semaphore
from typing import Self

CURRENT: ContextVar["CpuTurn | None"] = ContextVar("turn", default=None)  # the turn of the call that this thread serves


class CpuTurn:
    """One call's turn on the CPU; while the call waits for its answer, other calls have theirs."""

    def __init__(self, taken_in: Semaphore, answered: Semaphore) -> None:
        self._taken_in, self._answered = taken_in, answered
        self._held: Semaphore | None = None

    def begin(self, among: Semaphore | None = None) -> None:
        """Waits for the call's turn to be read and stored, among the calls that share this semaphore."""
        self._taken_in = among or self._taken_in
        self._taken_in.acquire()
        self._held = self._taken_in

    @property
    def begun(self) -> bool:
        """Whether the call is being read and stored."""
        return self._held is self._taken_in

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Gives the turn up within the `with` block, then waits for the turn to send the answer."""
        self.end()
        try:
            yield
        finally:
            self._answered.acquire()
            self._held = self._answered

    def end(self) -> None:
        """Ends the turn, so that the next call gets it."""
        if self._held is not None:
            self._held.release()
            self._held = None

    def __enter__(self) -> Self:
        self._outer = CURRENT.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        CURRENT.reset(self._outer)
        self.end()


def current_turn() -> CpuTurn:
    """Returns the turn of the call that this thread serves; raises LookupError outside of calls."""
    turn = CURRENT.get()
    if turn is None:
        raise LookupError("no call")
    return turn


@contextmanager
def others_turn() -> Iterator[None]:
    """Lets other calls have this call's turn within the `with` block, in which it waits for another process."""
    turn = CURRENT.get()
    if turn is None or not turn.begun:
        yield
        return
    turn.end()
    try:
        yield
    finally:
        turn.begin()
