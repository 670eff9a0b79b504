import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from inference.engine_requests import DecodingRequest, JsonFormat, TokenLogprob
from inference.prompts.prompt_format import PromptFormat
from models.leasing.leases import Lease, TakenBatch, TakenRequest
from request_body import PLAIN, Sampling
from tasks.serving.batches.batch_job import BatchJob, cache_salt, prepare


def vocabulary() -> str:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "one": 1, "two": 2, "three": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    return tokenizer.to_str()


def words() -> PromptFormat:
    return PromptFormat("words", vocabulary(), None)


def taken(*prompts: TakenRequest) -> TakenBatch:
    return TakenBatch(Lease(1, 1), joins=True, iteration_limit=9, preempts=("x",), prompts=prompts)


def prompt(
    id: str, input: str, body: Mapping[str, object] | None = None, generated_ids: tuple[int, ...] = ()
) -> TakenRequest:
    return TakenRequest(id, "small", "one", input, body or {}, 5, generated_ids)


def decoded(job: BatchJob) -> list[DecodingRequest]:
    return [one for one in job.sequences if isinstance(one, DecodingRequest)]


def test_a_prompt_becomes_token_ids_with_what_earlier_slices_generated():
    job = prepare(taken(prompt("a", "two three", generated_ids=(3, 3))), words(), max_positions=10)
    (sequence,) = decoded(job)
    assert (sequence.prompt_ids, sequence.generated_ids, sequence.limit) == ((1, 2, 3), (3, 3), 5)
    assert (job.joins, job.iteration_limit, job.preempts) == (True, 9, ("x",))


def test_what_a_client_said_about_sampling_and_stopping_reaches_the_engine():
    body = {"sampling": {"temperature": 0.5, "top_k": 3, "seed": 7}, "stop": ["three"]}
    (sequence,) = decoded(prepare(taken(prompt("a", "two", body)), words(), max_positions=10))
    assert sequence.sampling == Sampling(temperature=0.5, top_k=3, seed=7)
    assert sequence.stop == ("three",)


def test_nothing_but_its_format_ends_an_answer_that_is_held_to_one():
    body = {"sampling": {"stop_token_ids": [3]}, "stop": ["three"], "format": {"type": "json_object"}}
    (sequence,) = decoded(prepare(taken(prompt("a", "two", body)), words(), max_positions=10))
    assert sequence.format == JsonFormat(None)
    assert (sequence.stop, sequence.sampling.stop_token_ids) == ((), ())


def test_a_conversation_is_encoded_turn_by_turn():
    body = {"messages": [{"role": "user", "content": "two"}, {"role": "assistant", "content": "three"}]}
    (sequence,) = prepare(taken(prompt("a", "ignored", body)), words(), max_positions=30).sequences
    assert [word for word in sequence.prompt_ids if word > 1] == [2, 3]


def test_what_no_engine_accepts_is_set_apart_too():
    job = prepare(taken(prompt("a", "two", {"sampling": {"temperature": -1.0}})), words(), max_positions=10)
    assert [(one.request_id, one.code) for one in job.unservable] == [("a", "invalid_prompt")]


@pytest.mark.parametrize(
    "body", [["no", "object"], {"sampling": "hot"}, {"stop": 5}, {"messages": [{"role": "user"}]}, {"sampling": [1]}]
)
def test_a_row_that_another_program_wrote_differently_is_set_apart_from_its_mates(body: object):
    job = prepare(taken(prompt("a", "two", cast(Any, body)), prompt("b", "two")), words(), max_positions=10)
    assert [sequence.id for sequence in job.sequences] == ["b"]
    assert [(one.request_id, one.code) for one in job.unservable] == [("a", "invalid_prompt")]
    assert "its body is malformed" in job.unservable[0].message


def test_what_a_client_asked_of_its_answers_form_reaches_the_engine():
    schema = {"type": "object"}
    body = {"format": {"type": "json_schema", "name": "n", "schema": schema}, "top_logprobs": 3}
    asked = replace(prompt("a", "two", body, (3, 2)), logprobs=[[3, -0.5, [[3, -0.5]]], [2, -1.0, []], [1, -9.0, []]])
    (sequence,) = prepare(taken(asked), words(), max_positions=10).sequences
    assert (sequence.format, sequence.top_logprobs) == (JsonFormat('{"type": "object"}'), 3)
    # of a token that the planner does not let it keep, nothing is known
    assert sequence.logprobs == (TokenLogprob(3, -0.5, ((3, -0.5),)), TokenLogprob(2, -1.0))
    (plain,) = prepare(taken(prompt("a", "two", {"format": {"type": "json_object"}})), words(), 10).sequences
    assert (plain.format, plain.top_logprobs) == (JsonFormat(None), None)


def test_what_the_engine_lacks_is_refused_by_name():
    asked = replace(prompt("a", "two"), needs=("response_format", "logprobs"))
    job = prepare(taken(asked, prompt("b", "two")), words(), 10, ("response_format", "logprobs", "top_k"))
    assert [sequence.id for sequence in job.sequences] == ["b"]
    ((id_, code, message),) = [(one.request_id, one.code, one.message) for one in job.unservable]
    assert (id_, code) == ("a", "unsupported_value")
    assert "logprobs and response_format" in message


def test_each_tenant_has_a_salt_that_does_not_tell_its_name_and_differs_between_installations():
    salts = [cache_salt(tenant, key) for tenant in ("acme", "globex") for key in ("one", "other")]
    assert len(set(salts)) == 4
    assert cache_salt("acme", "one") == salts[0]
    job = prepare(taken(replace(prompt("a", "two"), tenant="acme")), words(), 10, salt_key="one")
    assert [sequence.cache_salt for sequence in decoded(job)] == [salts[0]]
    assert "acme" not in salts[0]


def test_what_else_a_client_asks_of_its_answer_reaches_the_engine():
    body = {
        "sampling": {
            "min_p": 0.1,
            "repetition_penalty": 1.5,
            "ignore_eos": True,
            "min_tokens": 3,
            "stop_token_ids": [2, 3],
        },
        "echo": True,
        "top_logprobs": 1,
        "raw": True,
    }
    (sequence,) = decoded(prepare(taken(prompt("a", "two three", body)), words(), max_positions=10))
    assert sequence.sampling == Sampling(
        min_p=0.1, repetition_penalty=1.5, ignore_eos=True, min_tokens=3, stop_token_ids=(2, 3)
    )
    assert sequence.prompt_logprobs
    assert (sequence.prompt_ids, sequence.turns) == ((2, 3), ())  # without the instructions, and no conversation


def test_the_thinking_of_a_raw_prompts_answer_is_known_where_it_has_a_budget():
    thinking = PromptFormat("words", vocabulary(), "<think></think>")
    body = {"sampling": {"thinking_token_budget": 3}, "raw": True}
    for asked, form in ((body, thinking.answer_form(())), ({"raw": True}, PLAIN)):
        (sequence,) = decoded(prepare(taken(prompt("a", "two three", asked)), thinking, max_positions=10))
        assert (sequence.answer_form, sequence.continues) == (form, True)
    assert thinking.answer_form(()) != PLAIN


def test_a_required_call_is_the_format_of_the_answer_and_tools_without_a_template_are_set_apart():
    tools = [{"name": "weather", "parameters": {"type": "object"}}]
    messages = [{"role": "user", "content": "two"}]
    body = {"tools": tools, "messages": messages, "tool_choice": {"mode": "required"}}
    job = prepare(taken(prompt("a", "two", body)), words(), max_positions=30)
    assert [(one.request_id, one.code) for one in job.unservable] == [("a", "invalid_prompt")]
    told = "{% if tools %}{{ tools[0].function.name }}{% endif %}"
    source = "{% for message in messages %}{{ message.content }}{% endfor %}" + told
    knowing = PromptFormat("words", words()._tokenizer.to_str(), source)
    (sequence,) = prepare(taken(prompt("a", "two", body)), knowing, max_positions=30).sequences
    assert sequence.format is not None
    assert json.loads(sequence.format.schema or "")["properties"]["name"] == {"const": "weather"}
    (told_of_none,) = prepare(
        taken(prompt("a", "two", body | {"tool_choice": {"mode": "none"}})), knowing, max_positions=30
    ).sequences
    assert told_of_none.format is None


def test_a_format_that_cannot_be_kept_to_is_set_apart_with_its_reason():
    formats = {"format": {"type": "json_object"}}
    batch = taken(prompt("a", "two", formats), prompt("b", "two"))
    job = prepare(batch, words(), max_positions=10, prepare_format=lambda asked, tenant: "it is too large")
    assert [sequence.id for sequence in job.sequences] == ["b"]
    assert [(one.request_id, one.code) for one in job.unservable] == [("a", "invalid_json_schema")]
    assert "it is too large" in job.unservable[0].message
