"""What tenants used: each answer once, whatever is repeated, folded or deleted; each tenant sees its own."""

import csv
import io
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from inference.engine_requests import DecodingRequest, FinishedRow
from models.connections.session import make_sessions
from models.leasing import batch_results
from models.leasing.batch_results import Answer, RowReturned
from models.leasing.leases import Lease
from models.tables import RequestStatus
from models.tenants import usage
from models.tenants.api_keys import Scope
from models.upkeep import retention
from tasks.serving.results.engine_events import event_of_row
from tests.integration.api_service import MODEL, Api
from tests.integration.database_stage import Stage

TODAY = "(clock_timestamp() at time zone 'UTC')::date"


@pytest.fixture
def serving(api: Api) -> "Serving":
    return Serving(api)


class Serving:
    """Ends requests as a worker's result writer does."""

    def __init__(self, api: Api) -> None:
        self.api, self.stage = api, Stage(api.engine)

    def running(self, id: str, tenant: str = "acme", batch_id: int = 1) -> str:
        return self.stage.request(id, tenant=tenant, status="in_progress", batch_id=batch_id, prompt_tokens=30)

    def answer(self, *ids: str, status: RequestStatus = RequestStatus.completed, batch_id: int = 1) -> None:
        answers = [Answer(Lease(batch_id, 1), one, status, "text", 7, "eos", 0.0, gpu_s=0.5) for one in ids]
        with self.api.engine.begin() as connection:
            batch_results.write_answers(connection, answers)

    def fold(self) -> int:
        with make_sessions(self.api.engine)() as session:
            return usage.fold(session, 1000)

    def used(self, api: Api, query: str = "") -> list[dict[str, Any]]:
        answer = api.call("GET", f"/v1/magnus/usage{query}")
        assert answer.status_code == 200, answer.get_data(as_text=True)
        data: list[dict[str, Any]] = answer.json["data"]
        return data


def test_a_prompt_counts_once_however_many_answers_its_call_asks_for(serving: Serving) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "n": 3, "max_tokens": 5}
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(serving.api.call, "POST", "/v1/chat/completions", json=body)
        while len(ids := [row.id for row in serving.api.sql("select id from requests")]) < 3 and not called.done():
            time.sleep(0.01)
        serving.api.sql("update requests set status = 'in_progress', batch_id = 1")
        serving.answer(*ids)
        answered = called.result().json["usage"]
    (used,) = serving.used(serving.api)
    assert (used["requests"], used["prompt_tokens"], used["answer_tokens"]) == (3, answered["prompt_tokens"], 21)


def test_an_answer_counts_at_once_and_as_much_once_it_is_folded(serving: Serving) -> None:
    serving.answer(serving.running("a"), serving.running("b"))
    before = serving.used(serving.api)
    ((today,),) = serving.api.sql(f"select {TODAY}")
    assert before == [
        {
            "day": today.isoformat(),
            "tenant": "acme",
            "model": "small",
            "requests": 2,
            "prompt_tokens": 60,
            "answer_tokens": 14,
            "gpu_seconds": 1.0,
            "tier": None,
        }
    ]
    assert serving.fold() == 1
    assert serving.used(serving.api) == before
    assert serving.fold() == 0
    serving.answer(serving.running("c"))
    serving.fold()
    assert [one["requests"] for one in serving.used(serving.api)] == [3]


def test_a_second_write_of_the_same_answer_counts_nothing(serving: Serving) -> None:
    serving.running("a")
    serving.answer("a")
    serving.answer("a")
    assert [one["requests"] for one in serving.used(serving.api)] == [1]


def test_deleting_answers_leaves_what_they_used(serving: Serving) -> None:
    serving.answer(serving.running("a"))
    with serving.api.engine.begin() as connection:
        assert retention.delete_old_requests(connection, 0.0, 10) == 1
    serving.fold()
    assert [one["answer_tokens"] for one in serving.used(serving.api)] == [7]


def test_a_request_that_failed_counts_with_its_seconds_alone(serving: Serving) -> None:
    serving.running("a")
    with serving.api.engine.begin() as connection:
        failed = Answer(Lease(1, 1), "a", RequestStatus.failed, None, 0, None, 0.0, {"code": "x"}, gpu_s=2.0)
        batch_results.write_answers(connection, [failed])
    (used,) = serving.used(serving.api)
    assert (used["requests"], used["prompt_tokens"], used["gpu_seconds"]) == (0, 0, 2.0)


def test_a_request_that_is_parked_goes_on_from_its_tokens_as_background_work(serving: Serving) -> None:
    serving.running("a")
    asked = DecodingRequest("a", (1, 2), 9)
    ended = FinishedRow("a", (5, 6), "parked")
    parked = event_of_row(Lease(1, 1), asked, ended, at=0.0, gpu_s=1.25, first_token_at=None)
    assert isinstance(parked, RowReturned)
    with serving.api.engine.begin() as connection:
        batch_results.write_returned(connection, [parked], 0.0)
    [row] = serving.api.sql("select status, tier, generated_ids from requests")
    assert (row.status, row.tier, row.generated_ids) == ("queued", "flex", [5, 6])
    serving.api.sql("update requests set status = 'in_progress', batch_id = 2")
    serving.answer("a", batch_id=2)
    assert [(one["requests"], one["gpu_seconds"]) for one in serving.used(serving.api)] == [(1, 1.75)]


def test_a_request_that_is_served_in_parts_is_one_request_with_the_seconds_of_all_parts(serving: Serving) -> None:
    serving.running("a")
    with serving.api.engine.begin() as connection:
        batch_results.write_returned(connection, [RowReturned(Lease(1, 1), "a", (1, 2), gpu_s=1.25)], 0.0)
    serving.api.sql("update requests set status = 'in_progress', batch_id = 2")
    serving.answer("a", batch_id=2)
    (used,) = serving.used(serving.api)
    assert (used["requests"], used["prompt_tokens"], used["gpu_seconds"]) == (1, 30, 1.75)


def test_a_tenant_sees_its_own_and_who_operates_the_service_sees_all(serving: Serving) -> None:
    serving.answer(serving.running("a"), serving.running("b", tenant="globex"))
    assert [one["tenant"] for one in serving.used(serving.api)] == ["acme"]
    operator = serving.api.with_key(scopes={Scope.read, Scope.operate})
    assert [one["tenant"] for one in serving.used(operator)] == ["acme", "globex"]
    (together,) = serving.used(operator, "?by=model")
    assert (together["tenant"], together["model"], together["requests"]) == (None, "small", 2)
    assert serving.used(serving.api.other_tenant("initech")) == []


def test_usage_tells_tiers_apart_before_and_after_it_is_folded(serving: Serving) -> None:
    for name, tier in (("p", "priority"), ("d", "default"), ("f", "flex")):
        serving.running(name)
        serving.api.sql("update requests set tier = :tier where id = :id", id=name, tier=tier)
    serving.running("b")
    serving.api.sql("update requests set tier = 'flex', job_id = 'batch_1' where id = 'b'")
    with serving.api.engine.begin() as connection:
        batch_results.write_returned(connection, [RowReturned(Lease(1, 1), "f", (1, 2), gpu_s=1.25)], 0.0)
    serving.api.sql("update requests set status = 'in_progress' where id = 'f'")
    serving.answer("p", "d", "f", "b")
    expected = {"priority": (1, 0.5), "default": (1, 0.5), "flex": (1, 1.75), "batch": (1, 0.5)}
    for _ in range(2):
        used = {one["tier"]: (one["requests"], one["gpu_seconds"]) for one in serving.used(serving.api, "?by=tier")}
        assert used == expected
        serving.fold()
    assert [one["requests"] for one in serving.used(serving.api)] == [4]


def test_usage_comes_as_csv_where_that_is_asked_for(serving: Serving) -> None:
    serving.answer(serving.running("a"))
    asked = serving.api.call("GET", "/v1/magnus/usage?format=csv&by=tenant,model")
    accepted = serving.api.call("GET", "/v1/magnus/usage?by=tenant,model", headers={"Accept": "text/csv"})
    assert asked.content_type == accepted.content_type == "text/csv; charset=utf-8"
    (row,) = csv.DictReader(io.StringIO(accepted.get_data(as_text=True)))
    assert row == {
        "day": "",
        "tenant": "acme",
        "model": "small",
        "requests": "1",
        "prompt_tokens": "30",
        "answer_tokens": "7",
        "gpu_seconds": "0.5",
        "tier": "",
    }
    assert serving.api.call("GET", "/v1/magnus/usage", headers={"Accept": "*/*"}).is_json


def test_only_the_days_asked_for_are_summed(serving: Serving) -> None:
    serving.api.sql(
        """insert into usage_days (day, tenant, model, requests, prompt_tokens, answer_tokens, gpu_s)
        select day::date, 'acme', 'small', 1, 1, 1, 1
        from generate_series('2026-01-01'::date, '2026-01-31', '1 day') as day"""
    )
    assert len(serving.used(serving.api, "?from=2026-01-10&to=2026-01-12")) == 3
    (sum_,) = serving.used(serving.api, "?from=2026-01-01&to=2026-12-31&by=tenant")
    assert sum_["requests"] == 31
    assert serving.used(serving.api, "?from=0001-01-01&to=0001-01-01") == []


@pytest.mark.parametrize(
    "query",
    [
        "from=2026-01-02&to=2026-01-01",
        "from=2020-01-01&to=2026-01-01",
        "from=1700000000",
        "from=2026-02-30",
        "by=hour",
        "by=tier,tier,tier,tier,tier",
        "by=",
        "format=xml",
        "tenant=globex",
        "to=0001-01-01&from=9999-12-31",
    ],
)
def test_what_no_usage_can_be_shown_for_is_refused(api: Api, query: str) -> None:
    assert api.call("GET", f"/v1/magnus/usage?{query}").status_code == 400
    assert api.call("GET", "/v1/magnus/usage?to=0001-01-01").status_code == 200
