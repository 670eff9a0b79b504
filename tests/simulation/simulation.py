"""Simulates one scenario: makes the service, lets the faults happen, lets it calm down, and checks what has become."""

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import process_time

import structlog

from models.connections import session
from models.planning import leadership
from tasks.planning import forecasts
from tests.simulation import connections, primitives
from tests.simulation.actors import Actor, World
from tests.simulation.checks import check_at_the_end, check_now
from tests.simulation.connections import Server
from tests.simulation.database import EMPTY
from tests.simulation.scenario import NO_FAULTS, Scenario
from tests.simulation.service import Service

DELAYS_S = (0.05, 0.5, 3.0, 7.0)
FREEZES_S = (0.5, 3.0, 5.0, 7.5, 20.0)  # some longer than a lease or a lead and not ended by the server
LOOK_EVERY_S = 1.0
FAULTS_FOR_S = 40.0
CALM_WITHIN_S = 400.0  # nobody waits longer than this without faults
EVENTS_WITHIN_S = 120.0  # after the last end of a request, the last batch ends and the last event arrives
UNSETTLED = """
    select exists (select from batches where status in ('assigned', 'running'))
        or exists (select from webhook_deliveries where next_attempt_at is not null)
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a scenario; `told` are the newest steps of its schedule."""

    scenario: Scenario
    failures: tuple[str, ...]
    told: tuple[str, ...]
    fingerprint: int
    statements: int
    simulated_s: float
    cpu_s: float


def simulate(scenario: Scenario, server: Server, url: str) -> Outcome:
    """Simulates a scenario from an empty database; the same scenario gives the same schedule."""
    began = process_time()
    server.sql(EMPTY)
    world = World(scenario, server)
    primitives.enter(world)
    server.set_clock(0.0)
    service = Service(world, url)
    world.faults = partial(fault, service)

    def look_while(goes_on: Callable[[], bool], for_s: float) -> None:
        until = world.now + for_s
        while not world.failures and world.now < until and goes_on():
            world.run(min(world.now + LOOK_EVERY_S, until))
            check_now(service)

    try:
        look_while(lambda: service.waiting, FAULTS_FOR_S)
        world.scenario = replace(scenario, **NO_FAULTS)
        look_while(lambda: service.waiting, CALM_WITHIN_S)
        look_while(lambda: bool(server.sql(UNSETTLED)[0][0]), EVENTS_WITHIN_S)
        if not world.failures:
            check_at_the_end(service)
    finally:
        world.end()
        primitives.enter(None)
        gc.collect(0)
    told, cpu_s = tuple(world.told), process_time() - began
    return Outcome(scenario, tuple(world.failures), told, world.fingerprint, world.statements, world.now, cpu_s)


def fault(service: Service, actor: Actor) -> None:
    """Perhaps kills, freezes or delays the chosen actor's process, or another one: a planner has most statements."""
    world, scenario = service.world, service.world.scenario
    process = actor.process if world.steps % 2 else world.random.choice([*service.living.values(), actor.process])
    if service.living.get(process.name) is not process or process.frozen_until > world.now:
        return
    often = 10 if actor.committing and actor.process is process else 1
    if world.chance(scenario.kills * often):
        service.end(process, "is killed")
    elif world.chance(scenario.freezes * often):
        world.freeze(process, world.random.choice(FREEZES_S), session.IDLE_IN_TRANSACTION_S)
        if world.chance(scenario.twins):
            service.replace(process)
    elif world.chance(scenario.delays):
        world.delay(actor, world.random.choice(DELAYS_S))


def _told_to_nobody(logger: object, method: str, event: object) -> str:
    raise structlog.DropEvent


def prepare(url: str) -> Server:
    """Connects the simulation to its database, and makes the product's modules simulated ones."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), processors=[_told_to_nobody]
    )
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)  # what a killed connection cannot do any more
    connections.install()
    # forecasts run no statement, and took half of a schedule's CPU time: each leader makes one alone
    setattr(forecasts, "EVERY_S", 1e9)  # noqa: B010
    setattr(leadership, "this_process", primitives.this_process)  # noqa: B010
    return Server(url)
