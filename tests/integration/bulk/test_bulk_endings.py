"""What batches give when lines are bad, requests fail, windows end, or somebody cancels: what is done stays."""

import csv
from typing import Any

import openai
import pytest
from openai import OpenAI

from models.bulk.bulk_jobs import delete_old_jobs, delete_old_lines
from models.bulk.stored_files import delete_old_files
from tests.integration.api_service import MODEL
from tests.integration.bulk_stage import BulkStage, chat_line, counts, create, records, results, upload


def test_a_bad_line_goes_to_the_error_file_and_harms_no_other(client: OpenAI, bulk: BulkStage) -> None:
    deep = b'{"custom_id": "deep", "body": ' + b"[" * 10_000 + b"]" * 10_000 + b"}"
    lines = [
        chat_line("good"),
        b"no json",
        deep,
        b"[1, 2]",
        chat_line("wrong model") | {"body": {"model": "gpt-9", "messages": [{"role": "user", "content": "a"}]}},
        chat_line("wrong field", nonsense=1),
        chat_line("too long", "word " * 51),
        chat_line("a stream", stream=True),
        chat_line("NUL", "a\0b"),
        chat_line("NUL in a name", **{"a\0b": 1}),
        chat_line("wrong method") | {"method": "GET"},
        chat_line("wrong url") | {"url": "/v1/embeddings"},
        chat_line("good", "again"),
        chat_line(7),
        {"method": "POST", "url": "/v1/chat/completions", "body": {}},
        b'{"custom_id": "lone surrogate \\ud800"}',
        chat_line("no limit", max_tokens=10**30),
        chat_line("also good"),
    ]
    batch = create(client, lines)
    bulk.finish()
    done = client.batches.retrieve(batch.id)
    assert (done.status, counts(done)) == ("completed", (len(lines), 2, len(lines) - 2))
    assert set(results(client, done.output_file_id)) == {"good", "also good"}
    assert done.error_file_id is not None
    errors = records(client.files.content(done.error_file_id).content)
    named = {
        record["custom_id"]: (record["response"]["status_code"], record["response"]["body"]["error"]["param"])
        for record in errors
        if record["custom_id"]
    }
    assert named == {
        "wrong model": (404, "model"),
        "wrong field": (400, "nonsense"),
        "too long": (400, "messages"),
        "a stream": (400, "stream"),
        "NUL": (400, "messages[0].content"),
        "NUL in a name": (400, "a\ufffdb"),
        "wrong method": (400, "method"),
        "wrong url": (400, "url"),
        "good": (400, "custom_id"),
        "no limit": (400, "max_tokens"),
    }
    unnamed = {record["error"]["line"]: record["error"]["code"] for record in errors if not record["custom_id"]}
    assert unnamed == {
        2: "invalid_json_line",
        3: "invalid_json_line",
        4: "model_type",
        14: "string_type",
        15: "missing",
        16: "invalid_json_line",
    }


def test_a_batch_for_another_endpoint_than_its_lines_is_refused_when_it_is_created(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, [chat_line("a") | {"url": "/v1/responses"}, chat_line("b") | {"url": "/v1/responses"}])
    assert (refused.value.param, refused.value.code) == ("endpoint", "mismatched_url")
    assert list(client.batches.list()) == []


def test_a_batch_without_one_valid_line_fails_and_says_why(client: OpenAI, bulk: BulkStage) -> None:
    batch = create(client, [b"no json", chat_line("a") | {"url": "/v1/responses"}])
    bulk.finish()
    failed = client.batches.retrieve(batch.id)
    assert (failed.status, counts(failed), failed.output_file_id) == ("failed", (2, 0, 2), None)
    assert failed.failed_at is not None
    assert failed.errors is not None
    assert failed.errors.data is not None
    assert [(error.line, error.code) for error in failed.errors.data] == [
        (1, "invalid_json_line"),
        (2, "mismatched_url"),
    ]


def test_a_cancelled_batch_keeps_what_is_done(client: OpenAI, bulk: BulkStage) -> None:
    batch = create(client, [chat_line(str(n)) for n in range(5)])
    bulk.feed()
    bulk.answer(2)
    bulk.api.sql(
        """update requests set status = 'in_progress' where id = (
            select id from requests where status = 'queued' limit 1)"""
    )
    assert client.batches.cancel(batch.id).status == "cancelling"
    bulk.count()
    cancelling = client.batches.retrieve(batch.id)
    assert (cancelling.status, counts(cancelling)) == ("cancelling", (5, 2, 0))
    assert bulk.api.sql("select count(*) from requests where cancel_requested_at is not null") == [(3,)]
    bulk.api.sql("update requests set status = 'cancelled', finished_at = now() where status = 'in_progress'")
    bulk.count()
    cancelled = client.batches.retrieve(batch.id)
    assert (cancelled.status, counts(cancelled)) == ("cancelled", (5, 2, 0))
    assert cancelled.cancelled_at is not None
    assert len(results(client, cancelled.output_file_id)) == 2
    errors = results(client, cancelled.error_file_id)
    assert {record["error"]["code"] for record in errors.values()} == {"batch_cancelled"}
    assert len(errors) == 3
    assert client.batches.cancel(batch.id).status == "cancelled"


def test_a_batch_whose_window_ends_keeps_what_is_done(client: OpenAI, bulk: BulkStage) -> None:
    batch = create(client, [chat_line(str(n)) for n in range(4)], completion_window="30m")
    bulk.feed()
    bulk.answer(1)
    ((deadline, expires_at),) = bulk.api.sql(
        "select distinct deadline_at, (select expires_at from bulk_jobs) from requests"
    )
    assert deadline == expires_at
    bulk.api.sql("update bulk_jobs set expires_at = now() - interval '1 s'")
    bulk.count()
    expired = client.batches.retrieve(batch.id)
    assert (expired.status, counts(expired)) == ("expired", (4, 1, 0))
    assert expired.expired_at is not None
    assert len(results(client, expired.output_file_id)) == 1
    errors = results(client, expired.error_file_id)
    assert {record["error"]["code"] for record in errors.values()} == {"batch_expired"}


def test_a_request_that_fails_is_in_the_error_file_and_the_others_are_answered(client: OpenAI, bulk: BulkStage) -> None:
    batch = create(client, [chat_line("a"), chat_line("b")])
    bulk.feed()
    bulk.api.sql(
        """update requests set status = 'failed', finished_at = now(),
            error = '{"code": "out_of_memory", "message": "Too large."}'
        where id = (select request_id from bulk_lines where custom_id = 'a')"""
    )
    bulk.finish()
    done = client.batches.retrieve(batch.id)
    assert (done.status, counts(done)) == ("completed", (2, 1, 1))
    failed = results(client, done.error_file_id)["a"]["response"]
    assert (failed["status_code"], failed["body"]["error"]["code"]) == (502, "out_of_memory")


def test_an_incomplete_answer_counts_as_completed_and_says_that_it_was_cut(client: OpenAI, bulk: BulkStage) -> None:
    batch = create(client, [chat_line("a")])
    bulk.feed()
    bulk.answer()
    bulk.api.sql("update requests set status = 'incomplete'")
    bulk.count()
    done = client.batches.retrieve(batch.id)
    choice = results(client, done.output_file_id)["a"]["response"]["body"]["choices"][0]
    assert (counts(done), choice["finish_reason"]) == ((1, 1, 0), "length")


def test_webhooks_hear_of_the_end_of_a_batch_once_and_not_of_its_lines(client: OpenAI, bulk: BulkStage) -> None:
    made = bulk.api.call("POST", "/v1/magnus/webhooks", json={"url": "https://example.com/"}).json
    body = {"model": MODEL, "input": "eins", "background": True}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": body}
    done = create(client, [line], "/v1/responses")
    bulk.finish()
    cancelled = create(client, [chat_line("b")])
    bulk.feed()
    client.batches.cancel(cancelled.id)
    bulk.count()
    heard = bulk.api.sql(
        "select type, object_id, event_id from webhook_deliveries where endpoint_id = :id", id=made["id"]
    )
    assert sorted(heard) == sorted(
        (kind, batch.id, f"evt_{batch.id.removeprefix('batch_')}")
        for kind, batch in (("batch.completed", done), ("batch.cancelled", cancelled))
    )


def test_results_of_both_files_are_read_in_the_order_of_the_input_and_as_a_table(
    client: OpenAI, bulk: BulkStage
) -> None:
    batch = create(client, [chat_line("a"), b"no json", chat_line("b", n=2), chat_line("c")])
    bulk.feed()
    bulk.answer(3)
    read = bulk.api.call("GET", f"/v1/batches/{batch.id}/results")
    assert [(one["custom_id"], one["error"] is None) for one in records(read.data)] == [
        ("a", True),
        (None, False),
        ("b", True),
    ]
    table = bulk.api.call("GET", f"/v1/batches/{batch.id}/results?format=csv")
    assert table.content_type == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(table.text.splitlines()))
    assert [(row["custom_id"], row["choice"], row["text"], row["completion_tokens"]) for row in rows] == [
        ("a", "0", "EINS", "2"),
        ("", "0", "", ""),
        ("b", "0", "EINS", "4"),
        ("b", "1", "EINS", ""),
    ]
    assert rows[1]["error_code"] == "invalid_json_line"
    refused = bulk.api.call("GET", f"/v1/batches/{batch.id}/results?format=xlsx")
    assert (refused.status_code, refused.json["error"]["param"]) == (400, "format")


def test_a_batch_is_gone_from_the_first_line_on_that_is_deleted(client: OpenAI, bulk: BulkStage) -> None:
    file = upload(client, [chat_line("a"), chat_line("b"), chat_line("c")])
    asked: Any = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    asked["extra_headers"] = {"Idempotency-Key": "a key"}
    batch = client.batches.create(**asked)
    bulk.finish()
    done = client.batches.retrieve(batch.id)
    assert done.output_file_id is not None
    with bulk.api.engine.begin() as connection:
        assert delete_old_lines(connection, -1.0, 1) == 1
    for gone in (
        lambda: client.batches.retrieve(batch.id),
        lambda: client.files.content(done.output_file_id or ""),
        lambda: client.get(f"/batches/{batch.id}/results", cast_to=str),
        lambda: client.batches.cancel(batch.id),
    ):
        with pytest.raises(openai.NotFoundError):
            gone()
    assert client.batches.list().data == []
    assert client.batches.create(**asked).id != batch.id  # its key is free
    with bulk.api.engine.begin() as connection:
        assert [delete_old_lines(connection, -1.0, 10), delete_old_jobs(connection, -1.0, 10)] == [2, 1]
        delete_old_files(connection, 60.0, 10)
    assert bulk.api.sql("select purpose from files") == [("batch",)]
