"""Threads, locks, events, queues and clocks of the standard library, as the simulated service gets them.

`install` puts them into every loaded module of the product, so that the product's threads become actors. Outside of a
simulation they behave as the real ones.
"""

import queue
import sys
import threading
import time
import uuid
from collections import deque
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

from tests.simulation.actors import BEGINS_AT, Actor, World

T = TypeVar("T")
PRODUCT = ("models", "tasks", "processes", "protocol", "inference", "learning", "webapp", "scheduling")
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
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._held and blocking:
            world().wait(lambda: not self._held, None if timeout < 0 else timeout)
        taken = not self._held
        self._held = True
        return taken

    def release(self) -> None:
        self._held = False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Event:
    """A flag for which actors wait."""

    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._set or world().wait(self.is_set, timeout)


class Condition(Lock):
    """A condition among actors; every waiter looks again after each notification."""

    def __init__(self) -> None:
        super().__init__()
        self._notified = 0

    def wait(self, timeout: float | None = None) -> bool:
        seen = self._notified
        self.release()
        came = world().wait(lambda: self._notified > seen, timeout)
        self.acquire()
        return came

    def notify(self, n: int = 1) -> None:
        self._notified += 1

    notify_all = notify


class SimpleQueue(Generic[T]):
    """A queue among actors."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()

    def put(self, item: T) -> None:
        self._items.append(item)

    def empty(self) -> bool:
        return not self._items

    def get(self) -> T:
        world().wait(lambda: bool(self._items), None)
        return self._items.popleft()


def monotonic() -> float:
    return time.monotonic() if _world is None else 1000.0 + _world.now


def unix_time() -> float:
    return BEGINS_AT + world().now


def sleep(seconds: float) -> None:
    world().wait(None, seconds)


def uuid4() -> uuid.UUID:
    return uuid.UUID(int=world().digits.getrandbits(128), version=4)


def this_process() -> str:
    current = world().current
    assert current is not None
    return f"{current.process.name}#{current.process.number}:1"


REPLACED: dict[int, Any] = {
    id(threading.Lock): Lock,
    id(threading.Event): Event,
    id(threading.Condition): Condition,
    id(queue.SimpleQueue): SimpleQueue,
    id(time.monotonic): monotonic,
    id(time.perf_counter): monotonic,
    id(time.thread_time): lambda: 0.0,
    id(time.time): unix_time,
    id(time.sleep): sleep,
    id(uuid.uuid4): uuid4,
}
REPLACED |= {
    id(module): SimpleNamespace(**{name: REPLACED.get(id(value), value) for name, value in vars(module).items()})
    for module in (time, threading, queue, uuid)
}


def install() -> None:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PRODUCT:
            _replace_in(module)
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


def _replace_in(module: ModuleType) -> None:
    for attribute, value in list(vars(module).items()):
        if (replacement := REPLACED.get(id(value))) is not None:
            setattr(module, attribute, replacement)
        elif isinstance(value, type) and value.__module__ == module.__name__:
            for method in vars(value).values():
                _replace_defaults(method)
        else:
            _replace_defaults(value)


def _replace_defaults(function: Any) -> None:
    if not isinstance(function, FunctionType):
        return
    if function.__defaults__:
        function.__defaults__ = tuple(REPLACED.get(id(one), one) for one in function.__defaults__)
    if function.__kwdefaults__:
        function.__kwdefaults__ = {name: REPLACED.get(id(one), one) for name, one in function.__kwdefaults__.items()}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name.startswith(("_dflt_", "__dataclass_dflt_")):
            cell.cell_contents = REPLACED.get(id(cell.cell_contents), cell.cell_contents)
