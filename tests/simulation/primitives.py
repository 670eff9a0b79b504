"""Locks, threads and clocks of the standard library, as a simulated service gets them; to be installed before imports.

Events, conditions and queues of the standard library are made of locks, so that they work among actors by themselves.
Outside of a simulation everything behaves as it does without `install`.
"""

import _thread
import queue
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from tests.simulation.actors import BEGINS_AT, Actor, World

_world: World | None = None


def world() -> World:
    assert _world is not None
    return _world


def enter(new: World | None) -> None:
    global _world
    _world = new


class Lock:
    """A lock among actors."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self.locked, self._at_fork_reinit = self._lock.locked, self._lock._at_fork_reinit  # type: ignore[attr-defined]

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking and _world is not None and _world.current is not None:
            _world.wait(lambda: not self.locked(), None if timeout < 0 else timeout)
            blocking, timeout = False, -1
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        if self.locked():  # a killed actor releases what it waited for
            self._lock.release()

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


def unix_time() -> float:
    return BEGINS_AT + world().now


def this_process() -> str:
    process = world().acting.process
    return f"{process.name}#{process.number}:1"


def _within(simulated: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: simulated(*values) if _world is not None else real(*values)


def install() -> None:
    monotonic = _within(lambda: 1000.0 + world().now, time.monotonic)
    for module, name, replacement in (
        (threading, "Lock", Lock),
        (threading, "_allocate_lock", Lock),
        (threading, "_time", monotonic),
        (queue, "SimpleQueue", queue._PySimpleQueue),  # type: ignore[attr-defined]
        (time, "monotonic", monotonic),
        (time, "perf_counter", monotonic),
        (time, "thread_time", lambda: 0.0),
        (time, "time", _within(unix_time, time.time)),
        (time, "sleep", _within(lambda seconds: world().wait(None, seconds), time.sleep)),
        (uuid, "uuid4", _within(lambda: uuid.UUID(int=world().digits.getrandbits(128), version=4), uuid.uuid4)),
    ):
        setattr(module, name, replacement)
    _real_start, _real_join, _real_alive = threading.Thread.start, threading.Thread.join, threading.Thread.is_alive
    actors: dict[threading.Thread, Actor] = {}

    def start(thread: threading.Thread) -> None:
        if _world is None or _world.current is None:
            return _real_start(thread)
        actors[thread] = _world.spawn(thread.name, thread.run, _world.current.process)
        return None

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread not in actors:
            return _real_join(thread, timeout)
        world().wait(lambda: actors[thread].done, timeout)
        return None

    def is_alive(thread: threading.Thread) -> bool:
        return not actors[thread].done if thread in actors else _real_alive(thread)

    for method, function in (("start", start), ("join", join), ("is_alive", is_alive)):
        setattr(threading.Thread, method, function)
