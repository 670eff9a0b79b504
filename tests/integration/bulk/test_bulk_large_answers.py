"""Answers with log probabilities of every token: their batch ends in steps, and no piece of its results is large."""

import json
import time

import pytest
from openai import OpenAI

from tasks.chores import job_progress
from tasks.chores.job_progress import update_next_job
from tests.integration.api_service import Api
from tests.integration.bulk_stage import BulkStage, chat_line, create

LINES, TOKENS, LIKELIEST = 12, 1024, 20
MOST_CPU_S = 0.2  # for one piece; as objects, one answer takes 0.4 s
MOST_BYTES = 9_000_000  # of one piece, which is 2 MB an answer


def answered(client: OpenAI, bulk: BulkStage) -> str:
    """A batch whose lines have answers of TOKENS tokens with log probabilities; not counted yet."""
    lines = (chat_line(str(n), logprobs=True, top_logprobs=LIKELIEST) for n in range(LINES))
    batch = create(client, lines)
    bulk.feed()
    bulk.answer()
    one = {"token": "w\u00f6rd\u2028", "logprob": -12.345678901234, "bytes": [119, 195, 182, 114, 100]}
    entries = [
        one | {"logprob": -n / 7, "top_logprobs": [one | {"logprob": -n / 7 - place} for place in range(LIKELIEST)]}
        for n in range(TOKENS)
    ]
    bulk.api.sql("update requests set logprobs = cast(:entries as jsonb)", entries=json.dumps(entries))
    return batch.id


def test_a_batch_ends_in_steps_that_go_on_where_the_last_one_stopped(
    client: OpenAI, bulk: BulkStage, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = answered(client, bulk)
    monkeypatch.setattr(job_progress, "MEASURED_FOR_S", 0.0)  # a page a step
    measured = []
    while client.batches.retrieve(batch).status != "completed":
        api.sql("update bulk_jobs set look_at = clock_timestamp()")
        update_next_job(api.engine)
        measured += api.sql("select last_line from files where purpose = 'output'")
    places = [place for (place,) in measured if place]
    assert places == sorted(places)
    assert 1 < len(set(places)) < LINES
    file = client.files.retrieve(client.batches.retrieve(batch).output_file_id or "")
    assert file.bytes == len(client.files.content(file.id).content)


def test_no_piece_of_the_results_takes_long_or_is_large(client: OpenAI, bulk: BulkStage, api: Api) -> None:
    batch = answered(client, bulk)
    bulk.count()
    file = client.batches.retrieve(batch).output_file_id
    for path in (f"/v1/batches/{batch}/results", f"/v1/files/{file}/content"):
        answer, spent = api.call("GET", path, buffered=False), time.thread_time()
        content = b""
        for piece in answer.response:
            assert len(piece) < MOST_BYTES
            assert time.thread_time() - spent < MOST_CPU_S
            content, spent = content + (piece if isinstance(piece, bytes) else piece.encode()), time.thread_time()
        lines = [json.loads(line) for line in content.decode().splitlines()]
        known = lines[0]["response"]["body"]["choices"][0]["logprobs"]["content"]
        assert (len(lines), len(known), len(known[0]["top_logprobs"])) == (LINES, TOKENS, LIKELIEST)


def test_one_answer_is_told_without_an_object_for_each_token(client: OpenAI, bulk: BulkStage, api: Api) -> None:
    answered(client, bulk)
    (stored,) = api.sql("select id from requests limit 1")
    spent = time.thread_time()
    answer = api.call("GET", f"/v1/responses/{stored.id}")
    assert time.thread_time() - spent < MOST_CPU_S
    assert len(json.loads(answer.data)["output"][0]["content"][0]["logprobs"]) == TOKENS
    assert api.call("POST", f"/v1/responses/{stored.id}/cancel").data == answer.data
