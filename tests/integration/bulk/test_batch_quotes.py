"""Quotes of batches: the offers of a file, a batch that accepts one, promises kept, missed and withdrawn."""

from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO
from typing import Any

import pytest

from models.connections.session import make_sessions
from models.operations import promise_book
from models.tenants import usage
from off_peak_hours import OffPeakHours
from scheduling.costs import ProfiledCurves, ServingCurves
from settings import Settings
from tests.integration.api_service import MODEL, Api
from tests.integration.bulk_stage import BulkStage, chat_line, jsonl
from tests.integration.conftest import running_api
from tests.integration.database_stage import facts, insert_worker

CHATS = "/v1/chat/completions"
NIGHT = "22:00-06:00 Europe/Berlin"
ENDED = 40  # batches that took 0.8 to 1.2 times what was forecast, and as many GPU-seconds


@pytest.fixture
def seller(web_settings: Settings) -> Iterator[Api]:
    """A service with prices, off-peak hours and a worker, whose forecasts of ENDED batches erred by up to a fifth."""
    for api in running_api(web_settings.model_copy(update={"prices": "gpu_hour=3600,flex=0.5", "off_peak": NIGHT})):
        # ten rows of 55 tokens fit, and each step takes a second: some 205 GPU-seconds for forty answers of 50 tokens
        curves = ProfiledCurves(ServingCurves((0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0)))
        worker = facts("w", MODEL, 550, curves=curves)
        insert_worker(api.sql, worker, heartbeat_at="clock_timestamp() + interval '1 hour'")
        api.sql(
            """insert into bulk_jobs (id, tenant, endpoint, input_file_id, completion_window, status, lines, last_line,
                forecast_s, expected_gpu_s, gpu_s, created_at, expires_at, completed_at)
            select 'batch_' || n, 'any', :chats, 'file', '1h', 'completed', 1, 1, 250, 200, 200 * share, ago,
                ago + interval '1 h', ago + interval '250 s' * share
            from generate_series(1, :ended) as n,
                lateral (select now() - interval '2 h' - n * interval '1 s' as ago, 0.8 + 0.4 * n / :ended as share) at
            """,
            ended=ENDED,
            chats=CHATS,
        )
        yield api


def uploaded(api: Api, lines: int = 40) -> str:
    content = jsonl(chat_line(str(n), "eins zwei", max_tokens=50) for n in range(lines))
    sent = {"purpose": "batch", "file": (BytesIO(content), "lines.jsonl")}
    return str(api.call("POST", "/v1/files", data=sent).json["id"])


def quoted(api: Api, file: str) -> dict[str, Any]:
    answer = api.call("POST", "/v1/magnus/quotes", json={"input_file_id": file, "endpoint": CHATS})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json
    return told


def offer(api: Api, file: str, probability: float = 0.9) -> dict[str, Any]:
    offers = quoted(api, file)["data"]
    return next(one for one in offers if (one["service_tier"], one["probability"]) == ("flex", probability))


def created(api: Api, file: str, quote: str, **extras: Any) -> Any:
    asked = {"input_file_id": file, "endpoint": CHATS, "completion_window": "24h", "magnus": {"quote": quote, **extras}}
    return api.call("POST", "/v1/batches", json=asked)


def promise(api: Api, id: str) -> Any:
    return api.call("GET", f"/v1/batches/{id}").json["magnus"]["promise"]


def settled(api: Api) -> list[tuple[Any, ...]]:
    """The promise book's sums, once a batch's time is over."""
    api.sql("update promises set look_at = statement_timestamp() where look_at is not null")
    with api.engine.begin() as connection:
        promise_book.settle(connection, 100)
    sums = "model, tier, probability, sold, kept, failed, longer_answer, later_arrivals"
    return [tuple(row) for row in api.sql(f"select {sums} from promise_hours")]


def test_a_quote_of_a_file_offers_each_tier_of_batches_with_its_times_price_and_work(seller: Api) -> None:
    told = quoted(seller, uploaded(seller))
    assert told["gpu_seconds_low"] < told["gpu_seconds"] < told["gpu_seconds_high"]
    assert told["gpu_seconds"] == pytest.approx(205, rel=0.1)
    assert told["expected_tokens"] == 40 * 50
    flex = [one for one in told["data"] if one["service_tier"] == "flex"]
    assert [one["probability"] for one in flex] == [0.5, 0.9, 0.95]
    times = [one["within_s"] for one in flex]
    assert 150 < times[0] < times[1] < times[2] < 500
    assert [one["price"] for one in flex] == pytest.approx([told["gpu_seconds"] / 2] * 3, rel=0.01)
    opens_at = OffPeakHours.parse(NIGHT).next_at(datetime.now(UTC).timestamp())
    nights = [one for one in told["data"] if one["service_tier"] == "off_peak"]
    assert nights[0]["within_s"] >= opens_at - datetime.now(UTC).timestamp()
    assert nights[0]["price"] == pytest.approx(told["gpu_seconds"], rel=0.01)


def test_a_batch_that_accepts_an_offer_carries_its_promise_and_keeps_it(seller: Api) -> None:
    bulk, file = BulkStage(seller), uploaded(seller)
    sold = offer(seller, file)
    batch = created(seller, file, sold["id"]).json
    told = batch["magnus"]["promise"]
    assert told["promised_by"] == pytest.approx(batch["created_at"] + sold["within_s"], abs=2)
    assert (told["probability"], told["price"], told["kept"]) == (0.9, sold["price"], None)
    bulk.finish()
    assert promise(seller, batch["id"])["kept"] is True
    assert seller.call("GET", "/v1/batches").json["data"][0]["magnus"]["promise"]["kept"] is True
    assert settled(seller) == [(MODEL, "flex", 0.9, 1, 1, 0, 0, 0)]


def test_a_batch_that_ends_late_has_missed_its_promise_and_the_book_says_why(seller: Api) -> None:
    bulk, file = BulkStage(seller), uploaded(seller)
    batch = created(seller, file, offer(seller, file)["id"]).json
    bulk.feed()
    seller.sql("update promises set promised_by = statement_timestamp() - interval '1 s'")
    assert promise(seller, batch["id"])["kept"] is False
    bulk.finish()
    assert promise(seller, batch["id"])["kept"] is False
    assert settled(seller) == [(MODEL, "flex", 0.9, 1, 0, 0, 0, 1)]


def stop(api: Api, id: str, action: str) -> None:
    """Uses up a batch's budget, gives it another window, or makes the call of this name."""
    if action == "budget":
        api.sql(
            "insert into usage_entries (day, tenant, model, requests, prompt_tokens, answer_tokens, gpu_s, "
            "job_id) select current_date, 'acme', 'm', 1, 1, 1, 5, :id",
            id=id,
        )
        with make_sessions(api.engine)() as session:
            usage.fold(session, 10)
    elif action == "window":
        assert api.call("POST", f"/v1/batches/{id}", json={"completion_window": "2h"}).status_code == 200
    else:
        assert api.call("POST", f"/v1/batches/{id}/{action}").status_code == 200


@pytest.mark.parametrize("action", ["pause", "budget", "cancel", "window"])
def test_a_promise_of_a_batch_whose_client_stops_it_is_not_counted(seller: Api, action: str) -> None:
    bulk, file = BulkStage(seller), uploaded(seller)
    batch = created(seller, file, offer(seller, file)["id"], budget={"amount": 5}).json
    bulk.feed()
    stop(seller, batch["id"], action)
    told = promise(seller, batch["id"])
    assert (told["price"], told["kept"]) == (batch["magnus"]["promise"]["price"], None)
    assert settled(seller) == []


@pytest.mark.parametrize("action", ["pause", "budget"])
def test_a_missed_promise_stays_missed_whatever_stops_its_batch_afterwards(seller: Api, action: str) -> None:
    bulk, file = BulkStage(seller), uploaded(seller)
    batch = created(seller, file, offer(seller, file)["id"], budget={"amount": 5}).json
    bulk.feed()
    seller.sql("update promises set promised_by = statement_timestamp() - interval '1 s'")
    stop(seller, batch["id"], action)
    assert promise(seller, batch["id"])["kept"] is False
    assert settled(seller) == [(MODEL, "flex", 0.9, 1, 0, 0, 0, 0)]


def test_a_promise_is_withdrawn_when_its_batchs_budget_is_lowered_below_what_is_used(seller: Api) -> None:
    file = uploaded(seller)
    batch = created(seller, file, offer(seller, file)["id"], budget={"amount": 900}).json
    seller.sql("update bulk_jobs set gpu_s = 10 where id = :id", id=batch["id"])
    path = f"/v1/batches/{batch['id']}"
    kept = seller.call("POST", path, json={"budget": {"amount": 800}}).json["magnus"]["promise"]
    assert kept["promised_by"] is not None
    assert seller.sql("select untold from bulk_jobs where id = :id", id=batch["id"]) == [(False,)]
    lowered = seller.call("POST", path, json={"budget": {"amount": 5}}).json["magnus"]
    assert (lowered["paused_for"], lowered["promise"]["promised_by"]) == ("budget", None)


def refusal(answer: Any) -> tuple[int, str | None]:
    return answer.status_code, answer.json["error"]["code"]


def test_an_offer_is_accepted_once_for_its_file_by_its_tenant_while_it_holds(seller: Api) -> None:
    file, other = uploaded(seller), uploaded(seller, 3)
    sold = offer(seller, file)["id"]
    assert refusal(created(seller, other, sold)) == (422, "quote_of_another_body")
    stranger = seller.other_tenant()
    assert refusal(created(stranger, uploaded(stranger), sold)) == (422, "quote_unknown")
    assert created(seller, file, sold).status_code == 200
    assert refusal(created(seller, file, sold)) == (422, "quote_used")
    assert seller.sql("select count(*) from bulk_jobs where input_file_id = :file", file=file) == [(1,)]
    late = offer(seller, file)
    for _ in range(3):
        seller.call("POST", "/v1/batches", json={"input_file_id": file, "endpoint": CHATS, "completion_window": "1h"})
    seller.client.application.extensions["magnus"].bulk_outlook.forget()
    assert refusal(created(seller, file, late["id"])) == (422, "quote_outdated")


def test_no_time_is_promised_that_a_tenants_budget_would_not_last_for(seller: Api) -> None:
    seller.sql(
        """insert into tenants (name, budget) values ('acme', '{"amount": 100, "unit": "gpu_s", "period": "day"}')"""
    )
    assert {one["within_s"] for one in quoted(seller, uploaded(seller))["data"]} == {None}


def test_no_offer_is_accepted_that_the_budget_would_not_last_for_beside_the_tenants_other_batches(seller: Api) -> None:
    seller.sql(
        """insert into tenants (name, budget) values ('acme', '{"amount": 300, "unit": "gpu_s", "period": "day"}')"""
    )
    file = uploaded(seller)
    first, second = offer(seller, file), offer(seller, file)
    assert created(seller, file, first["id"]).status_code == 200
    seller.client.application.extensions["magnus"].bulk_outlook.forget()
    assert {one["within_s"] for one in quoted(seller, file)["data"]} == {None}
    assert refusal(created(seller, file, second["id"])) == (422, "quote_outdated")
    seller.sql("""update tenants set budget = budget || '{"amount": 1000}'""")
    assert {one["within_s"] for one in quoted(seller, file)["data"]} != {None}
    seller.sql("""update tenants set budget = budget || '{"amount": 0.1}'""")
    assert refusal(created(seller, file, second["id"])) == (422, "quote_outdated")


def test_a_dry_run_prices_a_quoted_batch_in_the_tier_of_its_offer(seller: Api) -> None:
    file = uploaded(seller)
    night = next(one for one in quoted(seller, file)["data"] if one["service_tier"] == "off_peak")
    budget = {"amount": 150, "unit": "price"}  # of some 205 GPU-seconds, at 1 each; at 0.5 it would last
    told = created(seller, file, night["id"], dry_run=True, budget=budget).json["magnus"]
    assert told["budget_lines"] == pytest.approx(40 * 150 / 205, abs=3)


def test_a_level_that_batches_of_the_last_week_did_not_keep_is_not_offered(seller: Api) -> None:
    ago = "date_trunc('hour', now()) - interval '1 day'"
    for model, tier, level, kept in (  # of which two hours would have too few
        (MODEL, "flex", 0.9, 10),
        (MODEL, "default", 0.9, 0),
        (MODEL, "default", 0.5, 0),
        ("another", "flex", 0.95, 0),
    ):
        values = f"{ago}, 'other', '{model}', '{tier}', {level}, 20, {kept}, 0, 0, 0, 0"
        seller.sql(f"insert into promise_hours values ({values})")
    flex = [one for one in quoted(seller, uploaded(seller))["data"] if one["service_tier"] == "flex"]
    assert [one["probability"] for one in flex] == [0.5, 0.95]


def test_without_ended_batches_no_time_is_promised(seller: Api) -> None:
    seller.sql("delete from bulk_jobs")
    seller.client.application.extensions["magnus"].bulk_outlook.forget()
    told = quoted(seller, uploaded(seller))
    assert {one["within_s"] for one in told["data"]} == {None}
    assert told["gpu_seconds_high"] is None
