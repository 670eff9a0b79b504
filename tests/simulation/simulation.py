"""Simulates one scenario: makes the service, lets the faults happen, lets it calm down, and checks what has become."""

import gc
import logging
from dataclasses import dataclass, replace
from time import process_time

import structlog

from models.connections import session
from models.planning import leadership
from tasks.planning import forecasts
from tests.simulation import connections, primitives
from tests.simulation.actors import Actor, World
from tests.simulation.checks import check_at_the_end, check_now
from tests.simulation.connections import ERRORS, Server
from tests.simulation.database import EMPTY
from tests.simulation.scenario import Scenario
from tests.simulation.service import Service

DELAYS_S = (0.05, 0.5, 3.0, 7.0)
FREEZES_S = (0.5, 3.0, 5.0, 7.5, 20.0)  # some longer than a lease or a lead and not ended by the server
LOOK_EVERY_S = 1.0
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
    steps: int
    statements: int
    simulated_s: float
    cpu_s: float


def simulate(scenario: Scenario, server: Server, url: str) -> Outcome:
    """Simulates a scenario from an empty database; the same scenario gives the same schedule."""
    began = process_time()
    server.sql(EMPTY)
    world = World(scenario.seed)
    primitives.enter(world)
    server.set_clock(primitives.unix_time())
    faulty = True

    def draw_error(words: str) -> str | None:
        if not (faulty and world.chance(scenario.errors)):
            return None
        return world.random.choice(tuple(ERRORS))

    server.draw_error, server.holds, server.lost_commits = draw_error, scenario.holds, scenario.lost_commits
    world.settle = server.settle
    service = Service(world, url, scenario, server)

    def fault(actor: Actor) -> None:
        # half of the faults meet any process, because a planner has most of the statements
        process = (
            actor.process if world.steps % 2 else world.random.choice(list(service.living.values()) or [actor.process])
        )
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

    world.faults = fault
    try:
        while not world.failures and world.now < scenario.until_s and service.waiting:
            world.run(min(world.now + LOOK_EVERY_S, scenario.until_s))
            check_now(world, server, service)
        faulty, world.faults = False, lambda actor: None
        server.holds = server.lost_commits = 0.0
        scripted_faults_end(service)
        calm_until = world.now + scenario.calm_s
        while not world.failures and world.now < calm_until and service.waiting:
            world.run(world.now + LOOK_EVERY_S)
            check_now(world, server, service)
        settled_until = world.now + EVENTS_WITHIN_S
        while not world.failures and world.now < settled_until and server.sql(UNSETTLED)[0][0]:
            world.run(world.now + LOOK_EVERY_S)
        if not world.failures:
            check_at_the_end(world, server, service)
    finally:
        world.end()
        primitives.enter(None)
        gc.collect(0)
    return Outcome(
        scenario,
        tuple(world.failures),
        tuple(world.told),
        world.fingerprint,
        world.steps,
        world.statements,
        world.now,
        process_time() - began,
    )


def scripted_faults_end(service: Service) -> None:
    """Lets messages arrive and engines work from now on."""
    calm = replace(
        service.scenario, lost_messages=0.0, repeated_messages=0.0, late_messages=0.0, engine_failures=0.0, drains=False
    )
    service.scenario = calm
    service.broker.calm(calm)
    service.chores.receiver_fails = False


def _told_to_nobody(logger: object, method: str, event: object) -> str:
    raise structlog.DropEvent


def prepare(url: str) -> Server:
    """Connects the simulation to its database, and makes the product's modules simulated ones."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), processors=[_told_to_nobody]
    )
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)  # what a killed connection cannot do any more
    server = Server(url)
    connections.install(server)
    # forecasts run no statement, and took half of a schedule's CPU time: each leader makes one alone
    setattr(forecasts, "EVERY_S", 1e9)  # noqa: B010
    setattr(leadership, "this_process", primitives.this_process)  # noqa: B010
    return server
