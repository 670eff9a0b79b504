"""Quotes: their offers, calls that accept one, promises kept and missed; deadlines that are refused."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from openai import OpenAI

from models.planning.queue_snapshot import (
    Decisions,
    ModelForecast,
    ModelForecasts,
    ModelState,
    QueueSnapshot,
    write_queue_snapshot,
)
from scheduling.forecast.queue_order import Group, QueueOrder
from settings import Settings
from tests.integration.answering_worker import answering
from tests.integration.api_service import MODEL, Api, finish
from tests.integration.bulk_stage import BulkStage, chat_line, create
from tests.integration.conftest import running_api
from webapp.context.app_context import AppContext

WAITS_S, ANSWERS = 20.0, 40
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "eins zwei"}], "max_tokens": 8}
RESPONSE: dict[str, Any] = {"model": MODEL, "input": "eins zwei", "background": True}
CALLS = [
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", {"model": MODEL, "prompt": "eins zwei"}),
    ("/v1/responses", RESPONSE),
]


def queue_of(api: Api, waits_s: float) -> None:
    """Publishes a queue of this many seconds, as the planner does, and lets the API read it."""
    at = datetime.now(UTC)
    waiting = (Group(0.0, waits_s, (-1.0,) * 5, (1e9,) * 5),) if waits_s else ()
    order = QueueOrder((0.0, 0.0, 0.1, 0.0), 0.1, 1.0, waiting=waiting)
    snapshot = QueueSnapshot(
        at=at,
        models={MODEL: ModelState(workers=2)},
        forecasts=ModelForecasts(of_models={MODEL: ModelForecast(at=at.timestamp(), order=order)}),
    )
    with api.engine.begin() as connection:
        write_queue_snapshot(connection, snapshot)
    context_of(api).queue_snapshot.forget()


def context_of(api: Api) -> AppContext:
    context: AppContext = api.client.application.extensions["magnus"]
    return context


@pytest.fixture
def busy(web_settings: Settings) -> Iterator[Api]:
    """A service with prices and a queue of WAITS_S, whose forecasts of the last ANSWERS erred by up to a fifth."""
    prices = {"prices": "gpu_hour=3.6,priority=2,flex=0.5"}
    for api in running_api(web_settings.model_copy(update=prices)):
        first = api.submit()
        api.sql(
            """insert into requests (id, tenant, application, instructions, input, input_tokens, prompt_tokens,
                limit_tokens, model, body, status, output_text, output_tokens, arrived_at, finished_at, eta)
            select 'e' || n, tenant, application, '', input, input_tokens, prompt_tokens, limit_tokens, model, body,
                'completed', 'x', 4 + n % 3, clock_timestamp() - interval '100 s',
                clock_timestamp() - interval '100 s' + interval '1 s' * :waits * (0.8 + 0.4 * n / :answers),
                jsonb_build_object('forecast_s', :waits, 'eta_s', :waits)
            from requests, generate_series(1, :answers) as n where id = :id""",
            waits=WAITS_S,
            answers=ANSWERS,
            id=first["id"],
        )
        api.sql("delete from requests where id = :id", id=first["id"])
        api.sql(f"insert into usage_days values (current_date, 'acme', '{MODEL}', 100, 1000, 1000, 200)")
        context_of(api).response_times.forget()
        queue_of(api, WAITS_S)
        yield api


def quoted(api: Api, body: dict[str, Any] | None = None) -> dict[str, Any]:
    answer = api.call("POST", "/v1/magnus/quotes", json=body or RESPONSE)
    assert answer.status_code == 200, answer.get_data(as_text=True)
    told: dict[str, Any] = answer.json
    return told


def offer(api: Api, tier: str = "default", probability: float | None = 0.9) -> dict[str, Any]:
    """The offer for RESPONSE in this tier."""
    offers = quoted(api)["data"]
    (found,) = [one for one in offers if (one["service_tier"], one["probability"]) == (tier, probability)]
    return dict(found)


def accepted(api: Api, id: str, **others: Any) -> Any:
    return api.call("POST", "/v1/responses", json=RESPONSE | {"magnus": {"quote": id}} | others)


def refusal(answer: Any) -> tuple[int, str, str]:
    return answer.status_code, answer.json["error"]["code"], answer.json["error"]["param"]


def test_a_quote_offers_each_tier_with_its_times_and_its_price(busy: Api) -> None:
    told = quoted(busy)
    times = {
        tier: [one["within_s"] for one in told["data"] if one["service_tier"] == tier]
        for tier in ("flex", "default", "priority")
    }
    assert times["flex"] == [None]  # nobody knows when others leave capacity
    assert times["default"] == sorted(times["default"])
    assert times["priority"] == sorted(times["priority"])
    assert times["default"][0] == pytest.approx(1.0 * WAITS_S, rel=0.1)  # errors were between -20 and 20 %
    assert times["default"][2] == pytest.approx(1.2 * WAITS_S, rel=0.1)
    assert times["priority"][2] < 2.0
    # five tokens of 0.1 s of a fleet of two workers, at 0.001 a second
    assert told["expected_tokens"] == pytest.approx(5.0, abs=0.1)
    assert told["gpu_seconds"] == pytest.approx(1.0, abs=0.05)
    assert told["gpu_seconds_low"] <= told["gpu_seconds"] <= told["gpu_seconds_high"]
    prices = {one["service_tier"]: one["price"] for one in told["data"]}
    assert prices == pytest.approx({"flex": 0.0005, "default": 0.001, "priority": 0.002}, rel=0.05)
    assert busy.sql("select count(*) from requests where status = 'queued'") == [(0,)]


@pytest.mark.parametrize(("path", "body"), CALLS)
def test_each_call_accepts_an_offer_for_its_own_body(busy: Api, path: str, body: dict[str, Any]) -> None:
    (one,) = [
        one for one in quoted(busy, body)["data"] if (one["service_tier"], one["probability"]) == ("default", 0.9)
    ]
    with answering(busy):
        answer = busy.call("POST", path, json=body | {"magnus": {"quote": one["id"]}})
    assert answer.status_code == 200, answer.get_data(as_text=True)
    ((promised_s, price),) = busy.sql(
        """select extract(epoch from promised_by - r.arrived_at)::float8, price
        from promises p join requests r on r.id = p.request_id"""
    )
    assert (promised_s, price) == (pytest.approx(one["within_s"]), one["price"])


def test_a_promise_is_shown_with_the_request_and_is_kept_by_an_answer_in_time(busy: Api) -> None:
    sold = offer(busy, "priority", 0.95)
    answer = accepted(busy, sold["id"]).json
    assert answer["service_tier"] == "priority"
    promise = answer["magnus"]["promise"]
    assert promise["promised_by"] == pytest.approx(answer["magnus"]["arrived_at"] + sold["within_s"])
    assert (promise["probability"], promise["price"], promise["kept"]) == (0.95, sold["price"], None)
    finish(busy, answer["id"])
    assert read(busy, answer["id"])["kept"] is True
    busy.sql("update promises set promised_by = sold_at")
    assert read(busy, answer["id"])["kept"] is False


def read(api: Api, id: str) -> dict[str, Any]:
    promise: dict[str, Any] = api.call("GET", f"/v1/responses/{id}").json["magnus"]["promise"]
    return promise


def test_a_promise_is_at_risk_while_the_answer_is_expected_later_and_missed_once_its_time_is_over(busy: Api) -> None:
    job = accepted(busy, offer(busy)["id"]).json["id"]
    assert (read(busy, job)["at_risk"], read(busy, job)["kept"]) == (False, None)
    busy.sql("update promises set promised_by = sold_at + interval '10 s'")  # half of the time that it should take
    assert (read(busy, job)["at_risk"], read(busy, job)["kept"]) == (True, None)
    busy.sql("update promises set promised_by = sold_at")
    assert (read(busy, job)["at_risk"], read(busy, job)["kept"]) == (False, False)
    assert busy.call("POST", f"/v1/responses/{job}/cancel").json["magnus"]["promise"]["kept"] is None


@pytest.fixture
def unjudged(busy: Api, web_settings: Settings) -> Iterator[Api]:
    """The same service, whose forecasts have not been compared with answers yet."""
    busy.sql("update requests set eta = null")
    yield from running_api(web_settings.model_copy(update={"prices": "gpu_hour=3.6"}))


def test_without_known_errors_only_a_price_is_offered(unjudged: Api) -> None:
    offers = quoted(unjudged)["data"]
    assert {one["service_tier"]: (one["probability"], one["within_s"]) for one in offers} == dict.fromkeys(
        ("flex", "default", "priority"), (None, None)
    )
    sold = accepted(unjudged, offers[0]["id"]).json
    assert sold["service_tier"] == offers[0]["service_tier"]
    promise = sold["magnus"]["promise"]
    assert (promise["promised_by"], promise["price"]) == (None, offers[0]["price"])
    finish(unjudged, sold["id"])
    assert read(unjudged, sold["id"])["kept"] is None


def test_a_level_whose_promises_were_not_kept_is_not_offered(busy: Api) -> None:
    hour = "date_trunc('hour', now())"
    for model, probability in ((MODEL, 0.9), ("another", 0.5)):
        sums = "100, 20, 0, 0, 0, 80"
        busy.sql(f"insert into promise_hours values ({hour}, 'other', '{model}', 'default', {probability}, {sums})")
    context_of(busy).withheld_levels.forget()
    offers = [one for one in quoted(busy)["data"] if one["service_tier"] == "default"]
    assert [one["probability"] for one in offers] == [0.5, 0.95]


def test_once_the_tenants_budget_is_spent_no_time_is_promised_and_none_is_forecast(busy: Api) -> None:
    sold = offer(busy)
    snapshot = context_of(busy).queue_snapshot.get()
    assert snapshot is not None
    spent = snapshot.model_copy(update={"decisions": Decisions(spent_tenants=("acme",))})
    with busy.engine.begin() as connection:
        write_queue_snapshot(connection, spent)
    context_of(busy).queue_snapshot.forget()
    assert refusal(accepted(busy, sold["id"])) == (422, "quote_outdated", "magnus.quote")
    assert {one["within_s"] for one in quoted(busy)["data"]} == {None}
    waiting = busy.submit()["id"]  # it is no error of the forecasts that its answer comes next month
    assert busy.sql("select eta from requests where id = :id", id=waiting) == [(None,)]


def test_a_service_that_knows_nothing_offers_nothing(api: Api) -> None:
    told = quoted(api)
    assert (told["data"], told["expected_tokens"], told["gpu_seconds"]) == ([], None, None)


@pytest.mark.parametrize("changed", [{"input": "drei"}, {"max_output_tokens": 3}, {"instructions": "Repeat."}])
def test_an_offer_is_for_the_body_that_was_quoted(busy: Api, changed: dict[str, Any]) -> None:
    answer = accepted(busy, offer(busy)["id"], **changed)
    assert refusal(answer) == (422, "quote_of_another_body", "magnus.quote")


def test_an_offer_is_for_its_tenant_until_its_end_and_once(busy: Api) -> None:
    sold, terms = offer(busy), context_of(busy).quotes
    assert refusal(accepted(busy.other_tenant(), sold["id"])) == (422, "quote_unknown", "magnus.quote")
    assert refusal(accepted(busy, sold["id"][:-1] + "~")) == (422, "quote_unknown", "magnus.quote")
    assert refusal(accepted(busy, "none")) == (422, "quote_unknown", "magnus.quote")
    signed = terms.read(sold["id"])
    assert signed is not None
    over = terms.sign(signed.model_copy(update={"expires_at": signed.expires_at - terms.valid_s - 1}))
    assert refusal(accepted(busy, over)) == (422, "quote_expired", "magnus.quote")
    assert busy.sql("select count(*) from requests where status = 'queued'") == [(0,)]
    assert accepted(busy, sold["id"]).status_code == 200
    assert refusal(accepted(busy, sold["id"])) == (422, "quote_used", "magnus.quote")
    assert busy.sql("select count(*) from requests where status = 'queued'") == [(1,)]


def test_a_repeat_with_the_same_key_gets_the_same_promise(busy: Api) -> None:
    body, key = RESPONSE | {"magnus": {"quote": offer(busy)["id"]}}, {"Idempotency-Key": "once"}
    first, second = (busy.call("POST", "/v1/responses", json=body, headers=key).json for _ in range(2))
    assert (first["id"], first["magnus"]["promise"]) == (second["id"], second["magnus"]["promise"])
    assert busy.sql("select count(*) from promises") == [(1,)]
    queue_of(busy, 3 * WAITS_S)  # the offer itself would be refused now
    assert busy.call("POST", "/v1/responses", json=body, headers=key).json["id"] == first["id"]
    busy.sql("update requests set status = 'failed', finished_at = now(), error = :e", e='{"code": "server_error"}')
    again = busy.call("POST", "/v1/responses", json=body, headers=key)  # would make a new request
    assert refusal(again) == (422, "quote_outdated", "magnus.quote")


def test_a_deadline_before_the_promised_time_is_refused(busy: Api) -> None:
    sold = offer(busy)
    for best_effort in (False, True):
        extras = {"quote": sold["id"], "deadline_s": sold["within_s"] - 0.1, "best_effort": best_effort}
        refused = busy.call("POST", "/v1/responses", json=RESPONSE | {"magnus": extras})
        assert (refused.status_code, refused.json["error"]["param"]) == (400, "magnus.deadline_s")
    extras = {"quote": sold["id"], "deadline_s": sold["within_s"]}
    assert busy.call("POST", "/v1/responses", json=RESPONSE | {"magnus": extras}).status_code == 200


def test_an_offer_is_not_accepted_once_the_queue_has_grown(busy: Api) -> None:
    sold, sooner = offer(busy), offer(busy, "priority")
    queue_of(busy, 3 * WAITS_S)
    assert refusal(accepted(busy, sold["id"])) == (422, "quote_outdated", "magnus.quote")
    assert accepted(busy, sooner["id"]).status_code == 200  # which overtakes the others


def test_the_tier_priority_is_offered_and_sold_within_the_tenants_quota(busy: Api) -> None:
    sold = offer(busy, "priority")
    busy.sql("insert into tenants (name, weight, priority_requests) values ('acme', 1, 0)")
    assert {one["service_tier"] for one in quoted(busy)["data"]} == {"flex", "default"}
    assert refusal(accepted(busy, sold["id"])) == (422, "quote_outdated", "magnus.quote")
    assert busy.sql("select count(*) from requests where status = 'queued'") == [(0,)]


def test_a_quote_is_for_one_call_with_one_answer(busy: Api) -> None:
    several = busy.call("POST", "/v1/magnus/quotes", json=CHAT | {"n": 2})
    assert refusal(several) == (400, "several_answers", "n")
    nothing = busy.call("POST", "/v1/magnus/quotes", json={"model": MODEL})
    assert (nothing.status_code, nothing.json["error"]["code"]) == (400, "call")
    unknown = busy.call("POST", "/v1/magnus/quotes", json=RESPONSE | {"fast": True})
    assert (unknown.status_code, unknown.json["error"]["param"]) == (400, "fast")


def test_a_line_of_a_batch_accepts_no_quote(client: OpenAI, bulk: BulkStage) -> None:
    batch = create(client, [chat_line("a", magnus={"quote": "x"})])
    bulk.finish()
    (refused,) = client.files.content(client.batches.retrieve(batch.id).error_file_id or "").iter_lines()
    assert '"param":"magnus.quote"' in refused.replace(" ", "")


def test_a_deadline_that_is_unlikely_to_be_kept_is_refused_with_the_earliest_that_is(busy: Api) -> None:
    refused = busy.call("POST", "/v1/responses", json=RESPONSE | {"magnus": {"deadline_s": 5}})
    assert refusal(refused) == (422, "deadline_infeasible", "magnus.deadline_s")
    earliest_s = refused.json["error"]["earliest_deadline_s"]
    assert earliest_s == pytest.approx(WAITS_S, rel=0.1)
    assert busy.sql("select count(*) from requests where status = 'queued'") == [(0,)]
    for extras in ({"deadline_s": earliest_s}, {"deadline_s": 5, "best_effort": True}):
        assert busy.call("POST", "/v1/responses", json=RESPONSE | {"magnus": extras}).status_code == 200
    body, key = RESPONSE | {"magnus": {"deadline_s": earliest_s}}, {"Idempotency-Key": "once"}
    first = busy.call("POST", "/v1/responses", json=body, headers=key).json
    queue_of(busy, 3 * WAITS_S)
    assert refusal(busy.call("POST", "/v1/responses", json=body))[0] == 422
    assert busy.call("POST", "/v1/responses", json=body, headers=key).json["id"] == first["id"]
    sooner = RESPONSE | {"magnus": {"deadline_s": 5}, "service_tier": "priority"}
    assert busy.call("POST", "/v1/responses", json=sooner).status_code == 200


def test_no_deadline_is_refused_without_evidence(busy: Api) -> None:
    body = RESPONSE | {"magnus": {"deadline_s": 0.1}}
    queue_of(busy, 0)  # nothing waits
    assert busy.call("POST", "/v1/responses", json=body).status_code == 200
    queue_of(busy, WAITS_S)
    busy.sql("update service_state set updated_at = updated_at - interval '1 min' where name = 'planner'")
    context_of(busy).queue_snapshot.forget()
    assert busy.call("POST", "/v1/responses", json=body).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_stream_is_refused_like_any_call(busy: Api, path: str) -> None:
    body = dict(CALLS)[path] | {"stream": True, "magnus": {"deadline_s": 5}}
    answer = busy.call("POST", path, json=body)
    assert (answer.status_code, answer.json["error"]["code"]) == (422, "deadline_infeasible")
