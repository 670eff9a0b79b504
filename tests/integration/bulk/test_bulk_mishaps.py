"""Mishaps that other services' batches had: none loses a line, answers one twice, or stops another batch."""

import os
import signal
from dataclasses import dataclass, fields

import openai
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from models.bulk.stored_files import delete_old_chunks, delete_old_files
from models.connections.session import make_engine
from models.leasing import batch_results
from models.leasing.batch_results import Answer
from models.leasing.leases import Lease
from models.tables import RequestStatus
from protocol.limits.prompt_limits import PromptLimits
from tasks.chores.line_feeder import LineFeeder
from tests.integration.api_service import UNREADABLE, Api, cannot_read
from tests.integration.bulk_stage import BulkStage, chat_line, counts, create, jsonl, results, upload


def figures(api: Api) -> dict[str, float]:
    """The gauges of /metrics without labels."""
    families = text_string_to_metric_families(api.client.get("/metrics").text)
    return {one.name: one.value for family in families for one in family.samples if not one.labels}


def test_metrics_show_all_the_work_of_a_batch_that_the_limit_admits_in_part(client: OpenAI, api: Api) -> None:
    bulk = BulkStage(api, max_requests=8)  # a batch may have half of it queued, and no worker serves it
    batch = create(client, [chat_line(str(n)) for n in range(10)])
    assert figures(api)["magnus_batch_lines_unread"] == 10
    bulk.feed()
    seen = figures(api)
    assert (seen["magnus_requests_queued"], seen["magnus_batch_lines_unread"]) == (4, 6)
    api.call("POST", f"/v1/batches/{batch.id}/pause")
    bulk.count()
    seen = figures(api)
    assert (seen["magnus_requests_queued"], seen["magnus_requests_held"]) == (0, 4)
    assert seen["magnus_batch_lines_unread"] == 6
    client.batches.cancel(batch.id)
    bulk.count()
    assert {name: figures(api)[name] for name in seen if name.startswith(("magnus_requests_q", "magnus_batch"))} == {
        "magnus_requests_queued": 0,
        "magnus_batch_lines_unread": 0,
    }


@dataclass(frozen=True)
class KillingLimits(PromptLimits):
    """Limits whose check of `max_tokens: 13` kills the process, as the kernel does for want of memory."""

    def output_limit(self, requested: int | None, *, param: str) -> int:
        """Kills the process for 13 tokens."""
        if requested == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().output_limit(requested, param=param)


def test_a_kill_at_line_27_of_a_step_of_64_loses_and_doubles_no_line(client: OpenAI, bulk: BulkStage) -> None:
    lines = [chat_line(str(n), max_tokens=13 if n == 26 else 5) for n in range(64)]
    batch = create(client, lines)
    known: PromptLimits = bulk.api.client.application.extensions["magnus"].prompt_limits
    killing = KillingLimits(**{field.name: getattr(known, field.name) for field in fields(known)})
    url = bulk.api.engine.url.render_as_string(hide_password=False)
    child = os.fork()
    if child == 0:
        engine = make_engine(url)  # a connection of its own
        LineFeeder(engine, lambda: killing, max_requests=1000, max_tokens=10**6, max_bytes=2**30).feed(60.0)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert bulk.api.sql("select next_line, (select count(*) from requests) from bulk_jobs") == [(1, 0)]
    bulk.finish()
    done = client.batches.retrieve(batch.id)
    assert (done.status, counts(done)) == ("completed", (64, 64, 0))
    assert results(client, done.output_file_id).keys() == {str(n) for n in range(64)}


def test_an_answer_that_comes_after_the_cancel_of_its_batch_ends_the_line_once(client: OpenAI, bulk: BulkStage) -> None:
    batch = create(client, [chat_line("decodes")])
    bulk.feed()
    ((request,),) = bulk.api.sql("update requests set status = 'in_progress', batch_id = 1 returning id")
    client.batches.cancel(batch.id)
    bulk.count()
    assert client.batches.retrieve(batch.id).status == "cancelling"
    late = Answer(Lease(1, 1), request, RequestStatus.completed, "text", 7, "eos", 0.0, gpu_s=0.5)
    for _ in range(2):  # the worker does not know whether its first write arrived
        with bulk.api.engine.begin() as connection:
            batch_results.write_answers(connection, [late])
        bulk.count()
    ended = client.batches.retrieve(batch.id)
    assert (ended.status, counts(ended), ended.output_file_id) == ("cancelled", (1, 0, 0), None)
    assert results(client, ended.error_file_id)["decodes"]["error"]["code"] == "batch_cancelled"


def test_what_a_batch_answered_before_it_expired_is_in_the_usage(client: OpenAI, bulk: BulkStage) -> None:
    batch = create(client, [chat_line("a"), chat_line("b")])
    bulk.feed()
    answered = "update requests set status = 'in_progress', batch_id = 1 where id = (select min(id) from requests)"
    ((request,),) = bulk.api.sql(f"{answered} returning id")
    answer = Answer(Lease(1, 1), request, RequestStatus.completed, "text", 7, "eos", 0.0, gpu_s=0.5)
    with bulk.api.engine.begin() as connection:
        batch_results.write_answers(connection, [answer])
    bulk.api.sql("update bulk_jobs set expires_at = now() - interval '1 s'")
    bulk.count()
    expired = client.batches.retrieve(batch.id)
    assert (expired.status, counts(expired)) == ("expired", (2, 1, 0))
    used = bulk.api.call("GET", "/v1/magnus/usage").json["data"]
    assert [(day["requests"], day["answer_tokens"]) for day in used] == [(1, 7)]


def test_an_answer_that_cannot_be_read_is_its_lines_error_and_the_batch_ends(
    client: OpenAI, bulk: BulkStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = create(client, [chat_line("a"), chat_line("b")])
    bulk.feed()
    bulk.answer(2)
    bulk.api.sql("update requests set output_text = :text where id = (select min(id) from requests)", text=UNREADABLE)
    cannot_read(monkeypatch)
    bulk.count()
    ended = client.batches.retrieve(batch.id)
    assert (ended.status, counts(ended)) == ("completed", (2, 2, 0))
    shown = [one["response"] for one in results(client, ended.output_file_id).values()]
    assert sorted(one["status_code"] for one in shown) == [200, 500]
    assert {one["body"]["error"]["code"] for one in shown if one["status_code"] == 500} == {"unreadable_answer"}


def test_a_damaged_part_of_a_file_costs_its_lines_and_no_other_batch(client: OpenAI, bulk: BulkStage) -> None:
    lines = [chat_line(str(n)) for n in range(9)]
    damaged, torn, whole = (create(client, lines) for _ in range(3))
    bulk.api.sql("delete from file_chunks where file_id <> :whole", whole=whole.input_file_id)
    for file_id, parts in (
        (damaged.input_file_id, {1: jsonl(lines[:3]), 4: b"\xde\xad\xbe\xef", 7: jsonl(lines[6:])}),
        (torn.input_file_id, {1: jsonl(lines[:3]), 7: jsonl(lines[6:])}),
    ):
        for first, data in parts.items():
            bulk.api.sql("insert into file_chunks values (:file, :first, :data)", file=file_id, first=first, data=data)
    bulk.finish()
    assert counts(client.batches.retrieve(whole.id)) == (9, 9, 0)
    for batch in (damaged, torn):
        ended = client.batches.retrieve(batch.id)
        assert (ended.status, counts(ended)) == ("completed", (9, 6, 3))
        assert results(client, ended.output_file_id).keys() == {"0", "1", "2", "6", "7", "8"}


def test_two_batches_of_one_file_are_served_whole_though_it_is_deleted_meanwhile(client: OpenAI, api: Api) -> None:
    bulk = BulkStage(api, max_requests=4)
    file = upload(client, [chat_line(str(n)) for n in range(9)])
    made = [
        client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h").id
        for _ in range(2)
    ]
    bulk.feed()
    client.files.delete(file.id)
    with pytest.raises(openai.NotFoundError):
        client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    while bulk.feed() or bulk.answer():
        with api.engine.begin() as connection:
            delete_old_chunks(connection, 0.0, 100)
            delete_old_files(connection, 0.0, 100)
    bulk.count()
    for batch in map(client.batches.retrieve, made):
        assert (batch.status, counts(batch)) == ("completed", (9, 9, 0))
        assert len(results(client, batch.output_file_id)) == 9
    assert api.sql("select count(*) from file_chunks") == [(0,)]
