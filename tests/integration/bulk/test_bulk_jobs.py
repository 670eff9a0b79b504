"""Files and batches through the official openai client: the whole life of each object."""

from typing import Any

import openai
import pytest
from openai import OpenAI

from models.bulk import stored_files
from tasks.chores.job_progress import update_next_job
from tests.integration.api_service import MODEL, Api
from tests.integration.bulk_stage import BulkStage, chat_line, counts, create, jsonl, results, upload
from webapp.bulk.file_upload import CHUNK_BYTES


def test_a_file_is_uploaded_retrieved_listed_read_and_deleted(client: OpenAI) -> None:
    content = jsonl([chat_line("a"), chat_line("b")])
    made = upload(client, content)
    assert (made.bytes, made.filename, made.purpose, made.status) == (len(content), "lines.jsonl", "batch", "processed")
    assert client.files.retrieve(made.id) == made
    second = upload(client, content)
    assert [file.id for file in client.files.list()] == [second.id, made.id]
    assert [file.id for file in client.files.list(order="asc", limit=1)] == [made.id, second.id]
    assert client.files.content(made.id).content == content
    assert client.files.delete(made.id).deleted
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(made.id)
    assert [file.id for file in client.files.list(purpose="batch")] == [second.id]


def test_a_file_of_many_chunks_comes_back_byte_by_byte(client: OpenAI, api: Api) -> None:
    lines = [chat_line(f"line {n}", "ä" * (n % 1500)) for n in range(2000)]
    content = jsonl(lines) + b"\n \r\n" + jsonl([chat_line("last")]).strip()
    made = upload(client, content)
    assert client.files.content(made.id).content == content
    ((chunks, longest),) = api.sql("select count(*), max(length(data)) from file_chunks")
    assert chunks > 5
    assert longest < 2 * CHUNK_BYTES
    assert api.sql("select lines, last_line from files") == [(2001, 2003)]


def test_a_batch_is_created_served_and_read(client: OpenAI, bulk: BulkStage) -> None:
    batch = create(client, [chat_line("a", "hello"), chat_line("b", "world")], metadata={"run": "7"})
    assert (batch.status, batch.completion_window, batch.metadata) == ("validating", "24h", {"run": "7"})
    assert batch.expires_at == batch.created_at + 86_400
    assert counts(batch) == (2, 0, 0)
    bulk.feed()
    assert client.batches.retrieve(batch.id).status == "in_progress"
    bulk.answer(1)
    bulk.count()
    half = client.batches.retrieve(batch.id)
    assert (half.status, counts(half), half.error_file_id) == ("in_progress", (2, 1, 0), None)
    assert len(results(client, half.output_file_id)) == 1
    bulk.finish()
    done = client.batches.retrieve(batch.id)
    assert (done.status, counts(done), done.error_file_id, done.errors) == ("completed", (2, 2, 0), None, None)
    instants = [done.created_at, done.in_progress_at, done.finalizing_at, done.completed_at]
    assert None not in instants
    assert instants == sorted(instants, key=lambda at: at or 0)
    answers = results(client, done.output_file_id)
    assert {name: one["response"]["body"]["choices"][0]["message"]["content"] for name, one in answers.items()} == {
        "a": "HELLO",
        "b": "WORLD",
    }
    assert {one["response"]["status_code"] for one in answers.values()} == {200}
    assert {one["error"] for one in answers.values()} == {None}
    assert done.output_file_id is not None
    output = client.files.retrieve(done.output_file_id)
    assert (output.purpose, output.bytes) == ("batch_output", len(client.files.content(output.id).content))
    assert [one.id for one in client.batches.list()] == [batch.id]


@pytest.mark.parametrize(
    ("endpoint", "body", "kind"),
    [
        ("/v1/responses", {"input": "hello", "instructions": "Shout."}, "response"),
        ("/v1/completions", {"prompt": "hello"}, "text_completion"),
    ],
)
def test_every_endpoint_answers_with_its_own_object(
    client: OpenAI, bulk: BulkStage, endpoint: str, body: dict[str, Any], kind: str
) -> None:
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": {"model": MODEL, **body}}
    batch = create(client, [line], endpoint)
    bulk.finish()
    answer = results(client, client.batches.retrieve(batch.id).output_file_id)["a"]["response"]["body"]
    assert answer["object"] == kind
    assert "HELLO" in str(answer)


def test_a_retried_creation_with_its_key_makes_one_batch(client: OpenAI, api: Api) -> None:
    file = upload(client, [chat_line("a")])
    keyed = client.with_options(default_headers={"Idempotency-Key": "k"})
    first, second = (
        keyed.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        for _ in range(2)
    )
    assert first.id == second.id
    with pytest.raises(openai.UnprocessableEntityError):
        keyed.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="1h",  # type: ignore[arg-type]
        )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/images/generations"}, "endpoint"),
        ({"completion_window": "1y"}, "completion_window"),
        ({"completion_window": "99999d"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3599}}, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "created_at"}}, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "output_expires_after.anchor"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(client: OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, [chat_line("a")], **fields)
    assert refused.value.param == param


def test_results_are_no_input(client: OpenAI, bulk: BulkStage) -> None:
    batch = create(client, [chat_line("a")])
    bulk.finish()
    output = client.batches.retrieve(batch.id).output_file_id
    assert output is not None
    with pytest.raises(openai.BadRequestError, match="uploaded file"):
        client.batches.create(input_file_id=output, endpoint="/v1/chat/completions", completion_window="24h")


def test_lists_go_on_behind_the_last_entry(client: OpenAI) -> None:
    made = [create(client, [chat_line("a")]).id for _ in range(5)]
    first = client.batches.list(limit=2)
    assert ([one.id for one in first.data], first.has_more) == (made[:2:-1], True)
    assert [one.id for one in client.batches.list(limit=2)] == made[::-1]


@pytest.mark.parametrize("window", ["1m", "24h", "14d"])
def test_a_window_is_what_it_says(client: OpenAI, window: str) -> None:
    batch = create(client, [chat_line("a")], completion_window=window)
    assert batch.expires_at is not None
    assert batch.expires_at - batch.created_at in (60, 86_400, 14 * 86_400)


def test_results_expire_as_long_after_the_end_of_their_batch_as_it_says(client: OpenAI, bulk: BulkStage) -> None:
    batch = create(client, [chat_line("a"), b"no json"], output_expires_after={"anchor": "created_at", "seconds": 7200})
    bulk.feed()
    bulk.answer()
    bulk.api.sql("update bulk_jobs set look_at = clock_timestamp()")
    update_next_job(bulk.api.engine)
    running = client.batches.retrieve(batch.id)
    assert running.output_file_id is not None
    assert client.files.retrieve(running.output_file_id).expires_at is None
    bulk.finish()
    done = client.batches.retrieve(batch.id)
    assert done.completed_at is not None
    for file_id in (done.output_file_id, done.error_file_id):
        assert file_id is not None
        expires_at = client.files.retrieve(file_id).expires_at
        assert expires_at is not None
        assert abs(expires_at - done.completed_at - 7200) <= 1
    bulk.api.sql("update files set expires_at = now() - interval '1 s' where id = :id", id=done.output_file_id)
    with bulk.api.engine.begin() as connection:
        stored_files.delete_old_chunks(connection, 86_400.0, 10)
        assert stored_files.delete_old_files(connection, 86_400.0, 10) == 1
    with pytest.raises(openai.NotFoundError):
        client.files.content(done.output_file_id or "")
