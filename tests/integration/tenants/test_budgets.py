"""Budgets of tenants and batches: waiting work pauses once they are spent, until they are raised or begin anew."""

import gc
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from time import sleep
from typing import Any

import pytest
from openai import OpenAI

from models.client_requests import RequestView
from models.connections.session import make_sessions
from models.leasing import batch_results
from models.leasing.batch_results import Answer
from models.leasing.leases import Lease
from models.planning.queue_position import QueuePlace
from models.planning.queue_snapshot import read_queue_snapshot
from models.planning.waiting_reasons import waits_for
from models.tables import RequestStatus, StoredRequest
from models.tenants import tenant_limits, usage
from models.tenants.budgets import tier_prices
from scheduling.costs import ProfiledCurves, ServingCurves
from scheduling.request import Request
from settings import Settings
from tasks.planning import budget_gate
from tasks.planning.leader import Leader
from tests.integration.api_service import MODEL, Api
from tests.integration.bulk_stage import BulkStage, chat_line, create, jsonl, upload
from tests.integration.conftest import running_api
from tests.integration.database_stage import Stage, eventually, facts, insert_worker
from tests.integration.planner_stage import RULES

PRICES = tier_prices({"gpu_hour": 3600.0, "priority": 2.0, "flex": 0.5})  # a GPU-second costs 1, 2 or 0.5
TODAY = "(statement_timestamp() at time zone 'UTC')::date"


class Served(Stage):
    """A database with a planner, and workers that take any number of GPU-seconds for an answer."""

    def begin(self) -> None:
        self.leader = Leader(self.database, replace(RULES, policy="vs", prices=PRICES, snapshot_every_s=0.0))

    def budget(self, tenant: str, amount: float | None, unit: str = "gpu_s", period: str = "day") -> None:
        stored = None if amount is None else {"amount": amount, "unit": unit, "period": period}
        with make_sessions(self.database).begin() as session:
            tenant_limits.change_tenant(session, tenant, {"budget": stored})

    def step(self) -> set[str]:
        """Lets the planner decide; returns the requests that run."""
        self.leader.step()
        return {name for name, status in self.requests("status").items() if status == "in_progress"}

    def answer(self, gpu_s: float) -> None:
        """Answers all that run, as workers do, each with this many GPU-seconds."""
        rows = self.sql("select id, batch_id from requests where status = 'in_progress'")
        each = [
            Answer(Lease(batch, 1), name, RequestStatus.completed, "text", 7, "eos", 0.0, gpu_s=gpu_s)
            for name, batch in rows
        ]
        with self.database.begin() as connection:
            batch_results.write_answers(connection, each)
        self.sql("update batches set status = 'finished', finished_at = clock_timestamp()")

    def fold(self) -> None:
        with make_sessions(self.database)() as session:
            usage.fold(session, 1000)

    def publish(self) -> None:
        """Lets the planner publish who has spent a budget; its snapshots are some milliseconds apart."""
        begun = self.sql("select clock_timestamp() as at")[0].at
        written = "select from service_state where name = 'planner' and updated_at > :at"
        eventually(lambda: self.step() or self.sql(written, at=begun))

    def reason(self, id: str) -> str | None:
        """What the client of a request is told that it waits for."""
        with make_sessions(self.database)() as session:
            view = RequestView(session.get_one(StoredRequest, id), None, 0, None)  # type: ignore[arg-type]
            return waits_for(view, read_queue_snapshot(session), QueuePlace())


@pytest.fixture
def served(stage: Stage) -> Iterator[Served]:
    """One worker under `vs`, which runs some rows at a time."""
    served = Served(stage.database)
    served.worker(kv_tokens=2 * 1100)  # of Eq. (1): one row of the greatest length
    served.begin()
    yield served
    served.leader.resign()


def test_a_tenant_pauses_at_its_budget_and_goes_on_once_it_is_raised(served: Served) -> None:
    served.budget("acme", 3.0)
    for n in range(6):
        served.request(f"a{n}")
    began = set[str]()
    while running := served.step():
        began |= running
        served.answer(gpu_s=1.0)
    waiting = {name for name, status in served.requests("status").items() if status == "queued"}
    assert len(began) >= 3  # and what ran beside the third
    assert waiting
    assert waiting.isdisjoint(began)
    served.publish()
    assert "budget of its tenant is spent" in str(served.reason(min(waiting)))
    served.fold()  # the sums of days count as well as the entries
    assert not served.step()
    served.budget("acme", 100.0)
    assert served.step() <= waiting


def test_what_has_begun_when_a_budget_is_spent_goes_on(served: Served) -> None:
    served.budget("acme", 1.0)
    served.sql(f"insert into usage_days values ({TODAY}, 'acme', 'small', 1, 1, 1, 2.0)")
    served.request("begun", generated_ids=[5, 6])
    served.request("waits")
    assert served.step() == {"begun"}


def test_budgets_are_read_less_often_once_a_read_takes_long(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_gate, "FREE_S", -60.0)  # so that each read counts as one of a minute
    monkeypatch.setattr(budget_gate, "MOST_S", 2.0)
    served.budget("acme", 3.0)
    served.request("a")
    assert served.step() == {"a"}
    served.answer(gpu_s=5.0)
    served.request("b")
    assert served.step() == {"b"}
    served.answer(gpu_s=0.0)
    served.request("c")
    sleep(budget_gate.MOST_S)
    assert not served.step()


def test_no_more_than_what_runs_is_used_beyond_a_budget_however_much_waits(served: Served) -> None:
    served.budget("acme", 1.0)
    for n in range(40):
        served.request(f"a{n:02}")
    running = served.step()
    assert 0 < len(running) < 40
    assert served.step() == running  # nothing is used yet, and the worker is full
    served.answer(gpu_s=1.0)
    assert not served.step()
    assert served.sql("select sum(gpu_s) from usage_entries") == [(float(len(running)),)]


def test_another_tenant_is_served_while_one_has_spent_its_budget(served: Served) -> None:
    served.budget("acme", 1.0)
    served.budget("other", 1.0)
    served.sql(f"insert into usage_days values ({TODAY}, 'acme', 'small', 1, 1, 1, 2.0)")
    served.sql(f"insert into usage_days values ({TODAY} - 40, 'other', 'small', 1, 1, 1, 2.0)")  # an earlier period
    for n in range(3):
        served.request(f"a{n}")
        served.request(f"o{n}", tenant="other")
    first = served.step()
    assert first
    assert {name[0] for name in first} == {"o"}


def test_a_budget_begins_anew_with_its_period_also_under_a_planner_that_follows(served: Served) -> None:
    served.budget("acme", 1.0, period="month")
    served.sql(f"insert into usage_months values ('acme', date_trunc('month', {TODAY}), 'default', 2.0)")
    served.request("a")
    assert not served.step()
    served.leader.resign()
    served.begin()
    assert not served.step()
    served.sql("update usage_months set month = month - interval '1 month'")
    assert served.step() == {"a"}


def test_a_months_budget_counts_what_was_folded_in_parts_and_what_was_not(served: Served) -> None:
    served.budget("acme", 3.0, period="month")
    for n in range(4):
        served.request(f"a{n}")
        served.fold()
        assert served.step() == {f"a{n}"}
        served.answer(gpu_s=0.9)
    served.request("a4")
    assert not served.step()
    served.budget("acme", 3.7, period="month")
    assert served.step() == {"a4"}


@pytest.mark.parametrize(
    ("tier", "amount", "waits"), [("priority", 4.0, True), ("batch", 1.0, True), ("flex", 1.1, False)]
)
def test_a_budget_of_a_price_counts_each_tier_at_its_factor(
    served: Served, tier: str, amount: float, waits: bool
) -> None:
    served.budget("acme", amount, "price")
    served.sql(f"insert into usage_days values ({TODAY}, 'acme', 'small', 1, 1, 1, 2.0, :tier)", tier=tier)
    served.request("a")
    assert (served.step() == set()) is waits


def test_a_request_that_is_cancelled_while_its_budget_is_spent_is_never_served(served: Served) -> None:
    served.budget("acme", 1.0)
    served.sql(f"insert into usage_days values ({TODAY}, 'acme', 'small', 1, 1, 1, 2.0)")
    served.request("a")
    served.request("b")
    assert not served.step()
    served.sql("update requests set status = 'cancelled', finished_at = clock_timestamp() where id = 'a'")
    served.budget("acme", None)
    assert served.step() == {"b"}


def test_a_planner_remembers_no_request_that_came_and_was_cancelled_while_a_budget_is_spent(served: Served) -> None:
    served.budget("acme", 1.0)
    served.sql(f"insert into usage_days values ({TODAY}, 'acme', 'small', 1, 1, 1, 2.0)")
    for n in range(10):
        served.request(f"cancelled{n}")
    assert not served.step()
    served.sql("update requests set status = 'cancelled', finished_at = clock_timestamp()")
    served.step()
    gc.collect()
    every = [one for one in gc.get_objects() if isinstance(one, Request)]
    assert [one.id for one in every if one.id.startswith("cancelled")] == []


def test_what_was_promised_to_waiting_requests_is_withdrawn_once_the_budget_is_spent(served: Served) -> None:
    names = ["running", "waiting", "missed", "other"]
    served.request("running")
    assert served.step() == {"running"}
    for name in names[1:]:
        served.request(name, tenant="other" if name == "other" else "acme")
    served.sql(
        """insert into promises (request_id, quote, tenant, tier, probability, promised_by, look_at)
        select id, id, tenant, tier, 0.9, at, at from requests, lateral (
            select clock_timestamp() + interval '1 h' * case when id = 'missed' then -1 else 1 end as at
        ) as due where id = any(:names)""",
        names=names,
    )
    served.budget("acme", 1.0)
    served.sql(f"insert into usage_days values ({TODAY}, 'acme', 'small', 1, 1, 1, 2.0)")
    served.step()
    withdrawn = served.sql("select request_id from promises where promised_by is null and look_at is null")
    assert withdrawn == [("waiting",)]


def shown(api: Api, id: str) -> dict[str, Any]:
    """What a client is told of its batch, by the planner's last snapshot."""
    api.client.application.extensions["magnus"].queue_snapshot.forget()
    told: dict[str, Any] = api.call("GET", f"/v1/batches/{id}").json["magnus"]
    return told


def test_a_batch_pauses_at_its_budget_visibly_and_goes_on_once_it_is_raised(client: OpenAI, bulk: BulkStage) -> None:
    stage = Served(bulk.api.engine)
    stage.worker(model=MODEL, kv_tokens=400)
    stage.begin()
    extras: Any = {"magnus": {"budget": {"amount": 2.0}}}
    lines = [chat_line(f"l{n}", f"eins {n}", max_tokens=50) for n in range(30)]
    batch, free = create(client, lines, extra_body=extras), create(client, [chat_line("free")])
    bulk.feed()
    stage.sql("update requests set predicted_tokens = 40, predicted_upper_tokens = 50")
    most = 0
    while running := stage.step():
        most = max(most, len(running))
        stage.answer(gpu_s=0.5)
    stage.publish()
    told = shown(bulk.api, batch.id)
    jobs = dict(stage.sql("select job_id, count(*) from requests where status = 'queued' group by 1"))
    assert list(jobs) == [batch.id]  # the other batch is served
    assert 4 <= 30 - jobs[batch.id] < 4 + most
    assert (told["paused_for"], told["paused_at"]) == ("budget", None)
    waiting = stage.sql("select id from requests where status = 'queued' limit 1")[0][0]
    assert "budget of its job" in bulk.api.call("GET", f"/v1/responses/{waiting}").json["magnus"]["waits_for"]
    stage.fold()
    told = shown(bulk.api, batch.id)
    assert told["budget"] == {"amount": 2.0, "unit": "gpu_s", "used": 0.5 * (30 - jobs[batch.id])}
    assert told["gpu_s"] == told["budget"]["used"]
    raised = bulk.api.call("POST", f"/v1/batches/{batch.id}", json={"budget": {"amount": 100.0}}).json["magnus"]
    assert (raised["paused_for"], raised["budget"]["amount"]) == ("budget", 100.0)  # until the planner's next step
    while stage.step():
        stage.answer(gpu_s=0.5)
    bulk.count()
    ended = [client.batches.retrieve(one.id) for one in (batch, free)]
    assert [one.status for one in ended] == ["completed"] * 2
    assert ended[0].to_dict()["magnus"]["paused_for"] is None  # type: ignore[index]
    stage.leader.resign()


def test_no_further_line_of_a_batch_is_read_once_its_budget_is_spent(client: OpenAI, bulk: BulkStage) -> None:
    bulk.max_requests = 8
    create(client, [chat_line(str(n)) for n in range(30)], extra_body={"magnus": {"budget": {"amount": 2.0}}})
    assert 0 < bulk.feed() < 30
    bulk.answer()
    bulk.api.sql("update bulk_jobs set gpu_s = 2.0")
    assert bulk.feed() == 0
    bulk.api.sql("update bulk_jobs set gpu_s = 1.9")
    assert bulk.feed() > 0


@pytest.fixture
def priced(web_settings: Settings) -> Iterator[Api]:
    yield from running_api(web_settings.model_copy(update={"prices": "gpu_hour=3600,flex=0.5"}))


def test_a_dry_run_says_where_its_budget_or_its_tenants_would_pause_it(priced: Api) -> None:
    # ten rows of 55 tokens fit, and each step takes a second: some 205 s for forty answers of 50 tokens
    curves = ProfiledCurves(ServingCurves((0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0)))
    worker = facts("w", MODEL, 550, curves=curves)
    insert_worker(priced.sql, worker, heartbeat_at="clock_timestamp() + interval '1 hour'")
    content = jsonl(chat_line(str(n), "eins zwei", max_tokens=50) for n in range(40))
    sent = {"purpose": "batch", "file": (BytesIO(content), "lines.jsonl")}
    file = priced.call("POST", "/v1/files", data=sent).json["id"]
    asked = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}

    def tried(**extras: Any) -> tuple[int | None, str]:
        magnus = {"dry_run": True} | extras
        told = priced.call("POST", "/v1/batches", json=asked | {"magnus": magnus}).json["magnus"]
        return told["budget_lines"], " ".join(told["warnings"])

    assert tried() == (None, "")
    assert tried(budget={"amount": 1000})[0] is None
    lines, warning = tried(budget={"amount": 51.25, "unit": "price"})  # half a unit for a GPU-second
    assert lines == pytest.approx(20, abs=1)
    assert f"after about {lines} of 40 lines, when its budget is used" in warning
    Served(priced.engine).budget("acme", 102.5)
    priced.sql(f"insert into usage_days values ({TODAY}, 'acme', 'small', 1, 1, 1, 51.25)")
    lines, warning = tried(budget={"amount": 102.5})
    assert lines == pytest.approx(10, abs=1)
    assert "your budget of this day, 51.25 GPU-seconds, is used" in warning


def test_a_budget_in_a_price_stays_as_it_was_set_until_it_or_the_tier_changes(priced: Api) -> None:
    sent = {"purpose": "batch", "file": (BytesIO(jsonl([chat_line("a")])), "lines.jsonl")}
    asked = {"input_file_id": priced.call("POST", "/v1/files", data=sent).json["id"], "completion_window": "24h"}
    asked |= {"endpoint": "/v1/chat/completions", "magnus": {"budget": {"amount": 3, "unit": "price"}}}
    path = f"/v1/batches/{priced.call('POST', '/v1/batches', json=asked).json['id']}"

    def bought(**change: Any) -> float:
        assert priced.call("POST", path, json=change).status_code == 200
        return float(priced.sql("select budget->'gpu_s' from bulk_jobs")[0][0])

    priced.sql("""update bulk_jobs set budget = budget || '{"gpu_s": 7}'""")  # at the price of that time
    assert bought(completion_window="2h") == 7
    assert bought(service_tier="default") == 3
    assert bought(budget={"amount": 4}) == 4  # GPU-seconds, which are the same in every tier
    assert bought(service_tier="flex") == 4


@pytest.mark.parametrize("amount", ["0", "5e-324", "1e308"])
def test_an_amount_that_no_number_of_gpu_seconds_stands_for_is_refused(priced: Api, amount: str) -> None:
    body = f"""{{"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h",
        "magnus": {{"budget": {{"amount": {amount}, "unit": "price"}}}}}}"""
    answer = priced.call("POST", "/v1/batches", data=body, content_type="application/json")
    assert (answer.status_code, answer.json["error"]["param"]) == (400, "magnus.budget.amount")


def test_a_budget_in_a_price_needs_prices(api: Api, client: OpenAI) -> None:
    asked = {"input_file_id": upload(client, [chat_line("a")]).id, "endpoint": "/v1/chat/completions"}
    extras = {"budget": {"amount": 1, "unit": "price"}}
    answer = api.call("POST", "/v1/batches", json=asked | {"completion_window": "1h", "magnus": extras})
    assert (answer.status_code, answer.json["error"]["code"]) == (400, "no_prices")
