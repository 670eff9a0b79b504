"""What a batch is told: its tokens, when it should have ended, whether its window can be met; and what a try says."""

from datetime import UTC, datetime
from io import BytesIO
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import Batch

from models.planning.queue_snapshot import Decisions, QueueSnapshot, write_queue_snapshot
from scheduling.costs import ProfiledCurves, ServingCurves
from tests.integration.api_service import MODEL, Api
from tests.integration.bulk_stage import BulkStage, chat_line, counts, create, jsonl, upload
from tests.integration.database_stage import facts, insert_worker

DRY: Any = {"extra_body": {"magnus": {"dry_run": True}}}
LINES = [chat_line(str(number), "eins zwei", max_tokens=50) for number in range(40)]


def magnus(batch: Batch) -> dict[str, Any]:
    found: dict[str, Any] = batch.to_dict()["magnus"]  # type: ignore[assignment]
    return found


@pytest.fixture
def worker(api: Api) -> None:
    """A worker that runs at most ten rows of a hundred tokens, each step in a second."""
    curves = ProfiledCurves(ServingCurves((0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0)))
    worker = facts("w", MODEL, 550, curves=curves)
    insert_worker(api.sql, worker, heartbeat_at="clock_timestamp() + interval '1 hour'")


@pytest.mark.usefixtures("worker")
def test_a_batch_says_its_tokens_and_when_it_should_have_ended_until_it_has(client: OpenAI, bulk: BulkStage) -> None:
    batch = create(client, LINES)
    told = magnus(batch)
    # forty answers of at most 50 tokens; ten rows of 55 tokens fit, so four rounds of 50 s, and the longest once more
    prompt = told["predicted_tokens"] // 40 - 50
    assert told["eta_low_s"] < 200 < told["eta_s"] < 320 < told["eta_high_s"]
    assert 200 < told["left_gpu_s"] < 210  # four rounds, and the pauses between them
    assert (told["feasible"], told["earliest_window"], told["warnings"]) == (True, None, [])
    bulk.feed()
    bulk.answer(20)
    bulk.count()
    halfway = magnus(client.batches.retrieve(batch.id))
    assert bulk.api.sql("select distinct prompt_tokens from requests") == [(prompt,)]
    assert halfway["done_tokens"] == 20 * (prompt + 2)
    assert halfway["predicted_tokens"] == 20 * (prompt + 2) + 20 * (prompt + 50)
    bulk.finish()
    ended = magnus(client.batches.retrieve(batch.id))
    assert ended["done_tokens"] == ended["predicted_tokens"] == 40 * (prompt + 2)
    assert (ended["eta_s"], ended["feasible"], ended["left_gpu_s"]) == (None, None, None)


@pytest.mark.usefixtures("worker")
def test_a_window_that_cannot_be_met_is_said_with_the_earliest_that_can(client: OpenAI) -> None:
    late = magnus(create(client, LINES, completion_window="1m"))
    assert late["feasible"] is False
    assert late["earliest_window"] in late["warnings"][0]
    again = create(client, LINES[:1], completion_window=late["earliest_window"])
    assert magnus(again)["feasible"] is True


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("kept", [True, False])
def test_a_window_is_feasible_if_earlier_batches_kept_windows_as_short_for_their_work(
    client: OpenAI, api: Api, kept: bool
) -> None:
    # half had time and took nine times as long as forecast; half had less time than that and ended in it, or expired
    for ended, window, took in (("completed", 1000, 900), ("completed" if kept else "expired", 90, 80)):
        api.sql(
            f"""insert into bulk_jobs (id, tenant, endpoint, input_file_id, completion_window, status, lines, last_line,
                forecast_s, created_at, expires_at, {ended}_at)
            select 'batch_{window}_' || n, 'any', '/v1/chat/completions', 'file', '1h', '{ended}', 1, 1, 100,
                ago, ago + interval '{window} s', ago + interval '{took} s'
            from generate_series(1, 40) as n, lateral (select now() - interval '1 h' - n * interval '1 s' as ago) as at
            """  # constants
        )
    told = magnus(create(client, LINES, completion_window="4m"))  # some 255 s of work
    assert told["eta_high_s"] > 600
    assert told["feasible"] is kept
    assert (told["earliest_window"] is None) is kept


@pytest.mark.usefixtures("worker")
def test_a_dry_run_estimates_and_stores_nothing(client: OpenAI, api: Api) -> None:
    file = upload(
        client, [*LINES, chat_line("bad", "eins", service_tier="priority"), b"{", chat_line("long", "a " * 999)]
    )
    asked: Any = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "1m"}
    tried = client.batches.create(**asked, **DRY)
    told = magnus(tried)
    assert (told["dry_run"], told["checked_lines"], told["feasible"]) == (True, 43, False)
    assert told["left_gpu_s"] > 200
    assert told["earliest_window"] in told["warnings"][0]
    assert counts(tried) == (43, 0, 3)
    assert [error.line for error in (tried.errors and tried.errors.data) or ()] == [41, 42, 43]
    assert api.sql("select from bulk_jobs") == []
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve(tried.id)
    with pytest.raises(openai.BadRequestError):
        client.batches.create(**asked, extra_body={"magnus": {"dry": True}})


@pytest.mark.usefixtures("worker")
def test_a_batch_of_a_tenant_whose_budget_is_spent_has_no_end_and_delays_no_other(client: OpenAI, api: Api) -> None:
    paused = create(client, LINES)
    context = api.client.application.extensions["magnus"]
    stranger = api.other_tenant()
    file = {"purpose": "batch", "file": (BytesIO(jsonl(LINES)), "lines.jsonl")}
    asked = {"input_file_id": stranger.call("POST", "/v1/files", data=file).json["id"], "completion_window": "24h"}
    asked |= {"endpoint": "/v1/chat/completions", "magnus": {"dry_run": True}}

    def eta_s() -> float:
        context.bulk_outlook.forget()
        return float(stranger.call("POST", "/v1/batches", json=asked).json["magnus"]["eta_s"])

    beside = eta_s()
    with api.engine.begin() as connection:
        spent = Decisions(spent_tenants=("acme",))
        write_queue_snapshot(connection, QueueSnapshot(at=datetime.now(UTC), decisions=spent))
    assert eta_s() < 0.8 * beside
    assert magnus(client.batches.retrieve(paused.id))["eta_s"] is None


def test_without_a_worker_nothing_is_promised(client: OpenAI) -> None:
    told = magnus(create(client, LINES))
    assert told["predicted_tokens"] > 40 * 50
    assert (told["eta_s"], told["feasible"], told["warnings"]) == (None, None, [])
