"""What an operator is told while something is broken: verdict, /readyz, `magnus status`, doctor, and alarm.

Each fault lasts while requests wait. Within 30 s every signal names it, and none is green while clients wait; once the
fault has ended, every request is answered once.
"""

import operator
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
import yaml
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from cli.checks.startup_checks import broker_problem
from models.operations import operator_jobs, operator_overview
from models.session import make_sessions
from models.tenants import api_keys
from models.upkeep.invariants import violations
from settings import Settings
from tests.chaos.breakable_service import Service
from tests.integration.database_stage import MODEL, eventually
from webapp.app import create_app
from webapp.dashboard.overview_figures import read_overview

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

ALERTS = Path(__file__).parents[2] / "docs" / "prometheus" / "alerts.yml"
LEASE_S = 3.0  # that of the breakable service
TOLD_WITHIN_S = 30.0


class Told(NamedTuple):
    """What each signal has to say; the verdict is its word with the limit that binds."""

    verdict: tuple[str, str]
    missing: str  # in /readyz and `magnus status`
    doctor: str
    alarm: str | None  # its expression holds; None: it needs more than 30 s


@dataclass
class Operator:
    """The signals of a running service, as its operator reads them."""

    service: Service
    client: FlaskClient
    key: str

    def told(self, expected: Told) -> dict[str, object]:
        """The signals that do not say what they should, with what they say."""
        sessions = make_sessions(self.service.stage.database)
        with sessions() as session:
            verdict = read_overview(session, LEASE_S).verdict
            broken = [f"{v.invariant}: {'; '.join(v.examples)}" for v in violations(session.connection(), 2 * LEASE_S)]
        found: dict[str, object] = {}
        if (verdict.word, verdict.limit) != expected.verdict:
            found["verdict"] = verdict
        ready = self.client.get("/readyz").get_json()
        if ready["status"] != "degraded" or not any(expected.missing in one for one in ready["missing"]):
            found["readyz"] = ready
        stats = self.client.get("/v1/magnus/stats", headers={"Authorization": f"Bearer {self.key}"}).get_json()
        if not any(expected.missing in one for one in stats["missing"]):
            found["status"] = stats
        checked = [*broken, f"Redis: {broker_problem(self.service.redis_url)}"]
        if not any(expected.doctor in one for one in checked):
            found["doctor"] = checked
        if expected.alarm is not None and not self._holds(expected.alarm):
            found["alarm"] = expected.alarm
        return found

    def _holds(self, alarm: str) -> bool:
        (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
        (expression,) = (rule["expr"] for rule in group["rules"] if rule["alert"] == alarm)
        # of alternatives the first one
        name, sign, bound = re.match(r"(?:sum\()?(\w+)\)? (==|>) (\d+)", expression).groups()  # type: ignore[union-attr]
        compare = {"==": operator.eq, ">": operator.gt}[sign]
        page = self.client.get("/metrics").get_data(as_text=True)
        samples = [one for family in text_string_to_metric_families(page) for one in family.samples if one.name == name]
        return any(compare(one.value, float(bound)) and one.labels.get("process") != "trainer" for one in samples)


@pytest.fixture
def watching(service: Service) -> Iterator[Operator]:
    """An operator with a web process of their own; the service has no trainer, which is always missing."""
    settings = Settings(
        database_url=service.environment["MAGNUS_DATABASE_URL"],
        redis_url=service.redis_url,
        model=service.environment["MAGNUS_MODEL"],
        model_name=MODEL,
        lease_s=LEASE_S,
    )
    app = create_app(settings)
    with make_sessions(service.stage.database).begin() as session:
        _, key = api_keys.create(session, name="signals", tenant="acme")
    yield Operator(service, app.test_client(), key)
    app.extensions["magnus"].close()


@contextmanager
def full_broker(service: Service) -> Iterator[None]:
    """A broker whose memory is used up."""
    with redis.Redis.from_url(service.redis_url) as client:
        client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            client.config_set("maxmemory", 0)


@contextmanager
def dead(service: Service, *names: str) -> Iterator[None]:
    """Processes that were killed."""
    for name in names:
        service.kill(name)
    try:
        yield
    finally:
        service.start(*names)


@contextmanager
def frozen(service: Service, *names: str) -> Iterator[None]:
    """Processes that were stopped; those that ended themselves meanwhile are started again."""
    for name in names:
        service.freeze(name)
    try:
        yield
    finally:
        for name in names:
            if service.running[name].poll() is None:
                service.thaw(name)
            else:
                service.start(name)


@contextmanager
def paused(service: Service) -> Iterator[None]:
    """Planning is paused by an operator."""
    sessions = make_sessions(service.stage.database)
    with sessions() as session:
        operator_overview.set_paused(session, True)
    try:
        yield
    finally:
        with sessions() as session:
            operator_overview.set_paused(session, False)


@contextmanager
def refused_batches(service: Service) -> Iterator[None]:
    """A database that refuses each batch, so that every step of the planner fails."""
    service.stage.sql(
        "create function refuse() returns trigger language plpgsql as 'begin raise exception $$no$$; end'"
    )
    service.stage.sql("create trigger refuse before insert on batches for each row execute function refuse()")
    try:
        yield
    finally:
        service.stage.sql("drop function refuse cascade")


@contextmanager
def unserved(service: Service) -> Iterator[None]:
    """Requests of a model without a worker, which are moved to the served one at the end."""
    service.stage.request(f"unserved-{id(service)}", model="gone", limit_tokens=20)
    try:
        yield
    finally:
        with make_sessions(service.stage.database).begin() as session:
            assert operator_jobs.move_waiting(session, "gone", MODEL) == 1


BROKER = Told(("stuck", "broker"), "the broker takes no messages", "the broker takes messages", "MagnusBrokerRefuses")
NO_WORKER = Told(("stuck", "no worker"), "no worker is alive", "a worker takes batches", "MagnusWithoutWorkers")


def without(kind: str, verdict: tuple[str, str]) -> Told:
    return Told(verdict, f"no {kind} runs", f"no {kind} runs", "MagnusProcessMissing")


# What happens, and what is told. Workers are named w1 and w2.
FAULTS: dict[str, tuple[Callable[[Service], AbstractContextManager[None]], Told]] = {
    "the broker refuses writes": (full_broker, BROKER),
    "the broker is frozen": (lambda service: frozen(service, "valkey"), BROKER),
    "the broker is dead": (lambda service: dead(service, "valkey"), BROKER),
    "the planner is frozen": (lambda service: frozen(service, "planner"), without("planner", ("stuck", "planner"))),
    "the planner is dead": (lambda service: dead(service, "planner"), without("planner", ("stuck", "planner"))),
    "the planner's steps fail": (
        refused_batches,
        Told(("stuck", "planner"), "the steps of a process planner fail", "fail: ", "MagnusProcessFails"),
    ),
    "every worker is frozen": (lambda service: frozen(service, "w1", "w2"), NO_WORKER),
    "every worker is dead": (lambda service: dead(service, "w1", "w2"), NO_WORKER),
    "planning is paused": (paused, Told(("stuck", "planner"), "planning is paused", "planning is paused", None)),
    "nobody serves a model": (
        unserved,
        Told(("stuck", "no worker"), "no worker serves the model gone", "every model has", "MagnusModelUnserved"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_signal_names_the_fault_while_clients_wait(fault: str, service: Service, watching: Operator) -> None:
    cause, expected = FAULTS[fault]
    said: dict[str, object] = {}

    def right() -> bool:
        said.clear()
        said.update(watching.told(expected))
        return not said

    with cause(service):
        ids = service.submit(fault.replace(" ", "-"), 20, limit=100)
        try:
            eventually(right, within_s=TOLD_WITHIN_S)
        except AssertionError:
            pytest.fail(f"{fault}: {said}")
    service.all_answered_once(ids)


@pytest.mark.parametrize("kind", ["predictor", "chores", "beat"])
def test_a_missing_process_is_named_while_requests_go_on(kind: str, service: Service, watching: Operator) -> None:
    with frozen(service, kind):
        eventually(
            lambda: any(f"no {kind} runs" in one for one in watching.client.get("/readyz").get_json()["missing"]),
            within_s=TOLD_WITHIN_S,
        )
        service.all_answered_once(service.submit(f"without-{kind}", 10, limit=100))


def test_a_dead_postgres_is_told_by_status_codes(service: Service, watching: Operator) -> None:
    with dead(service, "postgres"):
        assert eventually(lambda: watching.client.get("/readyz").status_code == 503, TOLD_WITHIN_S)
        assert watching.client.get("/metrics").status_code == 503  # so that MagnusUnreachable goes off
    service.stage.database.dispose()
    service.all_answered_once(service.submit("after-postgres", 10, limit=100))
