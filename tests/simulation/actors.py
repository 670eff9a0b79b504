"""Actors of a simulated service and the seeded scheduler that decides who goes on; simulated time is a number here.

An actor is a greenlet that runs until its next statement, its next wait or its end. One runs at a time, so that the
seed alone decides the schedule. A process is a group of actors and connections that is killed or frozen as a whole.
"""

import math
import random
import traceback
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from greenlet import greenlet

from tests.simulation.scenario import Scenario

if TYPE_CHECKING:
    from tests.simulation.connections import Server, SimulatedConnection

BEGINS_AT = 1_767_225_600.0  # the Unix time at which every simulation begins: 2026-01-01
STATEMENT_S = 0.004  # a statement takes up to this long, in one of four cases; in the others no time at all
WEIGHTS = (0.05, 1.0, 1.0, 4.0)  # how often the actors of a process are chosen beside others; drawn for each process
TOLD = 400  # the newest steps that a failing seed tells


class Killed(BaseException):
    """Ends an actor whose process is killed; no handler of the product catches it."""


@dataclass(eq=False)
class Process:
    """Actors and connections that live and die together."""

    name: str
    weight: float
    connections: "dict[SimulatedConnection, None]" = field(default_factory=dict)  # in the order of their opening
    frozen_until: float = 0.0
    number: int = 0  # differs from that of a frozen process that still has the name


@dataclass(eq=False)
class Actor:
    """A greenlet of a process; it waits until `condition` holds or `wake_at` has come."""

    name: str
    process: Process
    run: greenlet
    condition: Callable[[], bool] | None = None
    wake_at: float | None = 0.0
    blocked: "SimulatedConnection | None" = None  # waits for a lock that another actor holds
    committing: "SimulatedConnection | None" = None
    not_before: float = 0.0  # a delay of this actor alone
    done: bool = False


class World:
    """The actors, the clock, the seed's choices, and what happened so far."""

    def __init__(self, scenario: Scenario, server: "Server") -> None:
        self.scenario, self.server = scenario, server
        self.random, self.digits = random.Random(scenario.seed), random.Random(scenario.seed)
        self.now = 0.0
        self.actors: list[Actor] = []
        self.blocked: list[Actor] = []
        self.current: Actor | None = None
        self.hub = greenlet.getcurrent()
        self.steps = self.statements = 0
        self.fingerprint = 0
        self.told: deque[str] = deque(maxlen=TOLD)
        self.failures: list[str] = []
        self.faults: Callable[[Actor], None] = lambda actor: None  # may kill or freeze the chosen actor's process
        self.failed_alone: set[str] = set()  # requests that were alone in an engine that failed
        self.dying = False
        self._processes: list[Process] = []
        self._condemned: list[tuple[Process, str]] = []

    # what actors call

    @property
    def acting(self) -> Actor:
        assert self.current is not None
        return self.current

    def spawn(self, name: str, work: Callable[[], Any], process: Process) -> Actor:
        actor: Actor = Actor(f"{process.name}/{name}", process, greenlet(lambda: self._live(actor, work), self.hub))
        self.actors.append(actor)
        return actor

    def process(self, name: str, number: int = 0) -> Process:
        self._processes.append(Process(name, self.random.choice(WEIGHTS), number=number))
        return self._processes[-1]

    def delay(self, actor: Actor, seconds: float) -> None:
        """Gives an actor no time for some seconds."""
        actor.not_before = self.now + seconds
        self.tell(f"{actor.name} is delayed for {seconds:g} s")

    def statement(self, words: str) -> None:
        """Lets the scheduler decide who goes on, before the calling actor's statement."""
        self.statements += 1
        self._pass_on(0.0, None, words)

    def wait(self, condition: Callable[[], bool] | None, timeout_s: float | None) -> bool:
        """Waits until the condition holds, or for `timeout_s`; returns whether the condition holds."""
        if condition is not None and condition():
            return True
        if timeout_s is not None and timeout_s <= 0:
            return False
        self._pass_on(None if timeout_s is None else self.now + timeout_s, condition, "")
        return condition is not None and condition()

    def block(self, connection: "SimulatedConnection") -> None:
        """Waits until a statement that waits for a lock has its answer."""
        actor = self.acting
        actor.blocked = connection
        self.blocked.append(actor)
        try:
            self._pass_on(None, None, "waits for a lock")
        finally:
            self.blocked.remove(actor)
            actor.blocked = None

    def tell(self, words: str) -> None:
        who = self.current.name if self.current else "world"
        self.fingerprint = zlib.crc32(f"{who} {words}".encode(), self.fingerprint)
        self.told.append(f"{self.now:9.3f} {who:28} {words}")

    def fail(self, words: str) -> None:
        self.tell(f"BROKEN: {words}")
        self.failures.append(words)

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability

    def _pass_on(self, wake_at: float | None, condition: Callable[[], bool] | None, words: str) -> None:
        if self.dying:
            raise Killed
        actor = self.acting
        actor.wake_at, actor.condition = wake_at, condition
        self.hub.switch()
        actor.wake_at = actor.condition = None
        if words:
            self.tell(words)

    def _live(self, actor: Actor, work: Callable[[], Any]) -> None:
        try:
            work()
        except Killed:
            pass
        except Exception as error:
            if not self.dying:
                where = traceback.extract_tb(error.__traceback__)[-4:]
                places = ", ".join(f"{Path(one.filename).name}:{one.lineno}" for one in where)
                self.fail(f"{actor.name} ended with {type(error).__name__}: {error} ({places})")
        finally:
            actor.done = True

    # the scheduler

    def condemn(self, process: Process, words: str) -> None:
        """Lets the scheduler end a process before anybody goes on."""
        process.frozen_until = math.inf
        self._condemned.append((process, words))

    def _kill(self, process: Process, words: str) -> None:
        """Ends a process: drops its connections, and its actors where they are; a commit under way is a coin."""
        mine = [actor for actor in self.actors if actor.process is process and not actor.done]
        committing = {actor.committing for actor in mine if actor.committing and self.random.random() < 0.5}
        self.tell(f"{process.name} {words}" + (", its commit took place" if committing else ""))
        for connection in list(process.connections):
            connection.drop(connection in committing)
        process.connections.clear()
        self._throw(mine)

    def freeze(self, process: Process, seconds: float, idle_s: float) -> None:
        """Stops a process for some seconds; the server ends what is in a transaction for longer than `idle_s`."""
        self.tell(f"{process.name} is frozen for {seconds:.1f} s")
        process.frozen_until = self.now + seconds
        if seconds > idle_s:
            for connection in list(process.connections):
                connection.end_idle()

    def end(self) -> None:
        for process in self._processes:
            for connection in list(process.connections):
                connection.drop(False)
        self._throw([actor for actor in self.actors if not actor.done])
        self.actors.clear()

    def _throw(self, actors: list[Actor]) -> None:
        before, self.dying = self.current, True
        for actor in actors:
            self.current = actor
            if actor.run:
                actor.run.throw(Killed)
            actor.done = True
        self.dying, self.current = False, before

    def run(self, until: float) -> None:
        """Lets actors go on until the simulated time `until`, or until an invariant is broken."""
        while not self.failures:
            while self._condemned:
                self._kill(*self._condemned.pop())
            if self.blocked:
                self.server.settle(self.blocked)
            ready = self._ready(self.actors)
            if not ready:
                wakes = [at for actor in self.actors if (at := self._wakes_at(actor)) is not None]
                if not wakes or min(wakes) > until:
                    self.now = until
                    return
                self.now = max(self.now, min(wakes))
                continue
            if self.now > until:
                return
            self.steps += 1
            if self.random.random() < 0.25:
                self.now += self.random.random() * STATEMENT_S
            weights = [actor.process.weight for actor in ready]
            actor = ready[0] if len(ready) == 1 else self.random.choices(ready, weights)[0]
            self.faults(actor)
            if self._ready([actor]):  # a fault may have ended what it waited for
                self.current = actor
                actor.run.switch()
                self.current = None
            if actor.done or self.steps % 64 == 0:
                self.actors = [actor for actor in self.actors if not actor.done]

    def _ready(self, actors: list[Actor]) -> list[Actor]:
        now, ready = self.now, []
        for actor in actors:  # each step looks at all, so that the loop has no calls of its own
            if actor.done or actor.process.frozen_until > now or actor.not_before > now:
                continue
            if (
                (actor.wake_at is not None and actor.wake_at <= now)
                or (actor.condition is not None and actor.condition())
                or (actor.blocked is not None and actor.blocked.ready(0))
            ):
                ready.append(actor)
        return ready

    def _wakes_at(self, actor: Actor) -> float | None:
        if actor.done or actor.blocked is not None:
            return None
        held_until = max(actor.process.frozen_until, actor.not_before)
        return held_until if held_until > self.now else actor.wake_at
