"""What an operator is told while something is broken: verdict, /readyz, `magnus status`, doctor, and alarm.

Within 30 s of a fault every signal names it, and none is green while clients wait. Once the fault has ended, every
request is answered once, and within 30 s no signal names anything. The table of all faults is printed at the end.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pytest

from cli.checks.startup_checks import bind
from cli.hosting import process_commands
from cli.hosting.child_process import stop
from cli.hosting.readiness import api_is_ready
from models.connections.database_errors import DISK_FULL
from models.connections.session import make_sessions
from models.tenants import api_keys
from settings import Settings
from tests.chaos import faults
from tests.chaos.breakable_service import Service
from tests.chaos.faults import dead, frozen
from tests.chaos.operator_signals import HEALTHY, PASSWORD, Operator

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

LEASE_S = 3.0  # that of the breakable service
CLEAR = "clear after"
FULL, REMEDY = DISK_FULL.split("; ")

Cause = Callable[[Service], AbstractContextManager[None]]


class Fault(NamedTuple):
    """What happens, and a pattern of what each signal says of it."""

    cause: Cause
    verdict: str  # word/limit: sentence, or the status code and the text of the page
    ready: str  # the status code and the text of /readyz
    status: str  # what `magnus status` calls missing, or its error
    doctor: str  # check: finding; remedy
    alarm: str | None  # None: an operator did it on purpose
    accepts: bool = True  # whether requests can be stored meanwhile

    @property
    def signals(self) -> dict[str, str]:
        """The patterns by signal."""
        told = (self.verdict, self.ready, self.status, self.doctor, self.alarm)
        return {signal: pattern for signal, pattern in zip(HEALTHY, told, strict=True) if pattern is not None}


def degraded(cause: Cause, verdict: str, missing: str, doctor: str, alarm: str | None) -> Fault:
    """A fault that /readyz and `magnus status` name with the same words."""
    return Fault(cause, f"^{verdict}", f"^200 degraded: .*{missing}", missing, doctor, alarm)


def of_broker(cause: Cause) -> Fault:
    verdict, missing = "stuck/broker: .*takes no messages", "the broker takes no messages"
    return degraded(cause, verdict, missing, "the broker takes messages: |Redis: ", "MagnusBrokerRefuses")


def of_process(kind: str, cause: Cause, verdict: str) -> Fault:
    missing = f"no {kind} runs"
    return degraded(cause, verdict, missing, f"{missing}.*start a {kind} process", "MagnusProcessMissing")


def of_failing_planner(message: str, condition: str, failure: str, missing: str, remedy: str) -> Fault:
    return degraded(
        lambda service: faults.refused_batches(service, message, condition),
        f"stuck/planner: .*steps fail: .*{failure}",
        missing,
        f"planner .* fail: .*{failure}.*{remedy}",
        "MagnusProcessFails",
    )


def of_every_worker(cause: Cause, missing: str) -> Fault:
    verdict = "stuck/no worker: .*no worker takes batches"
    return degraded(cause, verdict, missing, "a worker takes batches: .*start one", "MagnusWithoutWorkers")


def of_one_worker(cause: Cause) -> Fault:
    return degraded(
        cause, "keeping up", "worker w1 is silent", "w1, silent.*start the worker again", "MagnusWorkerGone"
    )


def of_database(cause: Cause, verdict: str, status: str, doctor: str) -> Fault:
    return Fault(cause, f"^{verdict}", f"^503: .*{status}", status, doctor, "MagnusUnreachable", accepts=False)


AWAY = ("503: .*Postgres does not answer", "database does not answer", "Postgres: .*check host and port")
# What happens, and what is told. Workers are named w1 and w2; requests go on without the last five processes.
FAULTS = {
    "the broker refuses writes": of_broker(faults.full_broker),
    "the broker is frozen": of_broker(lambda service: frozen(service, "valkey")),
    "the broker is dead": of_broker(lambda service: dead(service, "valkey")),
    "Postgres is dead": of_database(lambda service: dead(service, "postgres"), *AWAY),
    "Postgres is frozen": of_database(faults.frozen_postgres, *AWAY),
    "Postgres takes no writes": of_database(
        faults.read_only_postgres, "stuck/database: .*no writes", "takes no writes", "schema: .*primary"
    ),
    "the schema is old": of_database(
        faults.old_schema, "503: .*magnus migrate", "magnus migrate", "schema: .*magnus migrate"
    ),
    "the planner is frozen": of_process("planner", lambda service: frozen(service, "planner"), "stuck/planner: "),
    "the planner is dead": of_process("planner", lambda service: dead(service, "planner"), "stuck/planner: "),
    "the planner lacks a right": of_failing_planner(
        "permission denied for table batches",
        "insufficient_privilege",
        "permission denied for table batches",
        "steps of a process planner fail",
        "remove the cause",
    ),
    "the disk is full": of_failing_planner(
        "could not extend file: No space left on device", "disk_full", FULL, DISK_FULL, REMEDY
    ),
    "planning is paused": degraded(
        faults.paused, "stuck/planner: .*paused", "planning is paused", "planning is paused since .*resume", None
    ),
    "every worker is frozen": of_every_worker(lambda service: frozen(service, "w1", "w2"), "no worker is alive"),
    "every worker is dead": of_every_worker(lambda service: dead(service, "w1", "w2"), "no worker is alive"),
    "every worker is drained": of_every_worker(faults.drained, "no worker takes batches"),
    "one worker is frozen": of_one_worker(lambda service: frozen(service, "w1")),
    "one worker is dead": of_one_worker(lambda service: dead(service, "w1")),
    "nobody serves a model": degraded(
        faults.unserved,
        "stuck/no worker: .*serves gone",
        "no worker serves the model gone",
        "every model has a worker: .*gone.*start a worker",
        "MagnusModelUnserved",
    ),
    "an engine of others is away": degraded(
        faults.engine_away,
        "stuck/no worker: .*serves stub",
        "worker far is set aside",
        "far is set aside.*repair",
        "MagnusWorkerGone",
    ),
    "a worker reaches another Redis": degraded(
        faults.another_redis,
        "keeping up",
        "worker lost takes no messages",
        "every worker takes its messages: .*lost.*MAGNUS_REDIS_URL",
        "MagnusWorkerTakesNoMessages",
    ),
    "the web process is dead": Fault(
        lambda service: dead(service, "web"),
        "^no answer",
        "^no answer",
        "^no answer from http",
        "service: does not answer.*start it again",
        "MagnusUnreachable",
    ),
    "the predictor is frozen": of_process(
        "predictor", lambda service: frozen(service, "predictor"), "keeping up/predictor: .*predict"
    ),
    "the predictor is dead": of_process(
        "predictor", lambda service: dead(service, "predictor"), "keeping up/predictor: .*predict"
    ),
    "chores is dead": of_process("chores", lambda service: dead(service, "chores"), "keeping up"),
    "beat is dead": of_process("beat", lambda service: dead(service, "beat"), "keeping up"),
    "the trainer is dead": of_process("trainer", lambda service: dead(service, "trainer"), "keeping up"),
}


@pytest.fixture(scope="module")
def watching(
    whole_service: Service, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Operator]:
    """An operator of the service, to which a web process and a trainer are added; prints the table at the end."""
    port = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{port}"
    own = whole_service.environment | {"MAGNUS_DASHBOARD_PASSWORD": PASSWORD}
    for program in (process_commands.web("127.0.0.1", port, partial(api_is_ready, url)), process_commands.trainer()):
        whole_service.programs[program.name] = replace(program, env={**program.env, **own})
    whole_service.start("web", "trainer")
    settings = Settings(
        database_url=own["MAGNUS_DATABASE_URL"],
        redis_url=whole_service.redis_url,
        url=url,
        lease_s=LEASE_S,
        state_dir=tmp_path_factory.mktemp("operator"),
        port=0,
        flower_port=0,
    )
    with make_sessions(whole_service.stage.database).begin() as session:
        _, key = api_keys.create(session, name="signals", tenant="acme")
    operator = Operator(url, key, settings, {fault.alarm for fault in FAULTS.values() if fault.alarm})
    yield operator
    for name in ("web", "trainer"):
        stop((whole_service.programs.pop(name), whole_service.running.pop(name)))
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{operator.table(CLEAR)}")


@pytest.mark.parametrize("name", FAULTS)
def test_every_signal_names_the_fault_and_is_quiet_after_it(name: str, watching: Operator, service: Service) -> None:
    fault, ids = FAULTS[name], list[str]()
    with fault.cause(service):
        if fault.accepts:
            ids = service.submit(name.replace(" ", "-"), 20, limit=100)
        row = watching.rows[name] = watching.seconds_until(fault.signals)
        wrong = {signal: watching.said[signal] for signal, seconds in row.items() if seconds is None}
    service.stage.database.dispose()  # a fault of Postgres cuts its connections
    service.all_answered_once(ids or service.submit(name.replace(" ", "-"), 20, limit=100))
    after = watching.seconds_until(HEALTHY)
    row[CLEAR] = None if None in after.values() else max(filter(None, after.values()))
    still = {signal: watching.said[signal] for signal, seconds in after.items() if seconds is None}
    assert (wrong, still) == ({}, {})
