"""Lines of batches that ask for several answers: each is a request, and the line is done once all of them are."""

from typing import Any

import pytest
from openai import OpenAI

from tasks.chores import line_feeder
from tests.integration.api_service import MODEL, Api
from tests.integration.bulk_stage import BulkStage, chat_line, counts, create, results


def test_a_line_has_as_many_choices_as_it_asks_for_with_the_prompt_counted_once(
    client: OpenAI, bulk: BulkStage
) -> None:
    asked = [chat_line("three", "hello", n=3, seed=7, temperature=1.0), chat_line("one", store=False)]
    batch = create(client, asked)
    bulk.feed()
    assert bulk.api.sql("select queued, failed from bulk_jobs") == [(2, 0)]
    assert len(set(bulk.api.sql("select body->'sampling'->'seed' from requests where input = 'hello'"))) == 3
    bulk.answer(2)
    bulk.count()
    begun = client.batches.retrieve(batch.id)
    assert (begun.status, counts(begun), begun.output_file_id) == ("in_progress", (2, 0, 0), None)
    bulk.finish()
    done = client.batches.retrieve(batch.id)
    assert (done.status, counts(done), done.error_file_id) == ("completed", (2, 2, 0), None)
    found = results(client, done.output_file_id)
    three, one = (found[name]["response"]["body"] for name in ("three", "one"))
    assert [(choice["index"], choice["message"]["content"]) for choice in three["choices"]] == [
        (number, "HELLO") for number in range(3)
    ]
    assert three["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert three["usage"]["completion_tokens"] == 3 * one["usage"]["completion_tokens"]


def test_a_batch_that_has_ended_has_the_usage_of_its_answered_lines(client: OpenAI, bulk: BulkStage) -> None:
    asked = [chat_line("three", "hello", n=3), chat_line("one"), chat_line("fails", "hi")]
    batch = create(client, asked)
    assert batch.usage is None
    bulk.feed()
    bulk.api.sql("""update requests set status = 'failed', finished_at = now(), error = '{"code": "x", "message": "y"}'
        where input = 'hi'""")
    bulk.answer()
    bulk.api.sql("update requests set cached_tokens = 1, reasoning_tokens = 1 where status = 'completed'")
    bulk.finish()
    done = client.batches.retrieve(batch.id)
    assert counts(done) == (3, 2, 1)
    lines = [line["response"]["body"]["usage"] for line in results(client, done.output_file_id).values()]
    prompts, answers = (sum(line[f"{kind}_tokens"] for line in lines) for kind in ("prompt", "completion"))
    usage = done.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (prompts, answers, prompts + answers)
    assert (usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens) == (2, 4)
    assert answers == 8


def test_completions_have_choices_and_one_prompt(client: OpenAI, bulk: BulkStage) -> None:
    def line(name: str, **fields: Any) -> dict[str, Any]:
        body = {"model": MODEL} | fields
        return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}

    lines = [line("two", prompt="hello", n=2), line("listed", prompt=["hello"]), line("prompts", prompt=["a", "b"])]
    batch = create(client, lines, "/v1/completions")
    bulk.finish()
    done = client.batches.retrieve(batch.id)
    assert counts(done) == (3, 2, 1)
    answers = results(client, done.output_file_id)
    assert [choice["text"] for choice in answers["two"]["response"]["body"]["choices"]] == ["HELLO", "HELLO"]
    usages = [answers[name]["response"]["body"]["usage"]["prompt_tokens"] for name in ("two", "listed")]
    assert usages[0] == usages[1]
    assert results(client, done.error_file_id)["prompts"]["response"]["body"]["error"]["param"] == "prompt"


@pytest.mark.parametrize("failed_first", [True, False])
def test_a_line_fails_once_all_its_answers_ended_and_one_of_them_failed(
    client: OpenAI, bulk: BulkStage, failed_first: bool
) -> None:
    batch = create(client, [chat_line("a", n=3)])
    bulk.feed()
    order = "asc" if failed_first else "desc"
    bulk.api.sql(
        f"""update requests set status = 'failed', finished_at = now(),
            error = '{{"code": "out_of_memory", "message": "Too large."}}'
        where id = (select id from requests order by id {order} limit 1)"""
    )
    bulk.count()
    assert counts(client.batches.retrieve(batch.id)) == (1, 0, 0)
    bulk.answer(1)
    client.batches.cancel(batch.id)
    bulk.count()
    done = client.batches.retrieve(batch.id)
    assert (done.status, counts(done), done.output_file_id) == ("cancelled", (1, 0, 1), None)
    assert results(client, done.error_file_id)["a"]["response"]["body"]["error"]["code"] == "out_of_memory"


def test_a_line_whose_answers_were_not_all_served_was_not_served(client: OpenAI, bulk: BulkStage) -> None:
    batch = create(client, [chat_line("a", n=2)])
    bulk.feed()
    bulk.answer(1)
    client.batches.cancel(batch.id)
    bulk.count()
    done = client.batches.retrieve(batch.id)
    assert (done.status, counts(done), done.output_file_id) == ("cancelled", (1, 0, 0), None)
    assert results(client, done.error_file_id)["a"]["error"]["code"] == "batch_cancelled"


def test_a_deleted_answer_takes_its_line_out_of_the_output(client: OpenAI, bulk: BulkStage) -> None:
    batch = create(client, [chat_line("a", n=2), chat_line("b")])
    bulk.finish()
    second = bulk.api.sql("select request_id from bulk_lines where choice = 1")[0].request_id
    client.responses.delete(second)
    done = client.batches.retrieve(batch.id)
    assert set(results(client, done.output_file_id)) == {"b"}


def test_the_requests_of_a_line_are_queued_together_and_count_against_the_queue(client: OpenAI, api: Api) -> None:
    bulk = BulkStage(api, max_requests=10)
    batch = create(client, [chat_line("wide", n=8), chat_line("four", n=4), chat_line("one")])
    assert bulk.feed() == 1  # more than half of the queue, but nothing else is queued
    bulk.answer()
    assert bulk.feed() == 2
    bulk.finish()
    assert counts(client.batches.retrieve(batch.id)) == (3, 3, 0)


def test_a_step_ends_after_the_line_that_fills_it(client: OpenAI, bulk: BulkStage) -> None:
    create(client, [chat_line(str(n), n=128) for n in range(6)])
    bulk.feed()
    assert sorted(bulk.api.sql("select count(*) from requests group by xmin::text")) == [(256,), (512,)]


def test_a_step_ends_after_the_line_whose_requests_have_its_bytes(
    client: OpenAI, bulk: BulkStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_feeder, "STEP_BYTES", 5000)
    create(client, [chat_line(str(n), "x" * 1000, n=4) for n in range(6)])
    bulk.feed()
    assert sorted(bulk.api.sql("select count(*) from requests group by xmin::text")) == 3 * [(8,)]


def test_the_lines_of_a_tenant_that_wait_have_no_more_bytes_than_half_of_its_bound(client: OpenAI, api: Api) -> None:
    bulk = BulkStage(api, max_bytes=20_000)
    create(client, [chat_line(str(n), "x" * 1000, n=4) for n in range(6)])
    assert 0 < bulk.feed() < 3
    bulk.finish()
    assert api.sql("select completed from bulk_jobs") == [(6,)]


def test_too_many_log_probabilities_of_a_lines_answers_are_refused(client: OpenAI, bulk: BulkStage) -> None:
    batch = create(client, [chat_line("a", n=128, logprobs=True, top_logprobs=20), chat_line("b")])
    bulk.finish()
    done = client.batches.retrieve(batch.id)
    error = results(client, done.error_file_id)["a"]["response"]["body"]["error"]
    assert (counts(done), error["param"]) == ((2, 1, 1), "logprobs")
