"""From a valid body to the row: what is stored, and which bodies mean the same."""

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest

from inference.prompts.model_prompt import ModelPrompt
from inference.prompts.prompt_format import PromptFormat
from models.client_requests import RequestView
from models.planning.queue_snapshot import ModelState, QueueSnapshot
from models.tables import StoredRequest
from protocol.client_errors import InvalidRequest
from protocol.limits.prompt_limits import PromptLimits
from protocol.requests.submission import Submission, accepted_request, canonical_digest, served_tier, tier_of_answers
from protocol.responses.response_schemas import CreateResponse
from request_body import AnswerForm, RequestBody, StoredFormat, read_body, stored_form
from scheduling.request import ServiceTier
from settings import BUNDLED_MODEL

BODY = CreateResponse(model="words", input="eins")
SUBMISSION = Submission(
    tenant="acme",
    idempotency_key=None,
    model="words",
    prompt=ModelPrompt("", "eins"),
    body=RequestBody(metadata={"ticket": "7"}, stop=("END",)),
    sent=BODY,
    limit_tokens=None,
)


def asking(**stored: Any) -> Submission:
    return dataclasses.replace(SUBMISSION, body=read_body(stored))


def test_what_the_engine_must_be_able_to_do_is_said_with_the_field_that_asks_for_it() -> None:
    assert SUBMISSION.needs == {}
    assert asking(sampling={"temperature": 0.0, "top_k": 5}).needs == {}  # greedy decoding samples nothing
    sampled = asking(
        sampling={"temperature": 0.7, "top_k": 5, "min_tokens": 3}, format={"type": "json_object"}, top_logprobs=0
    )
    assert sampled.needs == {
        "temperature": "temperature",
        "top_k": "magnus.top_k",
        "min_tokens": "min_tokens",
        "response_format": "response_format",
        "logprobs": "logprobs",
    }
    body = stored_form(sampled.body)
    assert (body["format"], body["top_logprobs"]) == ({"type": "json_object"}, 0)
    assert not {"format", "top_logprobs"} & stored_form(SUBMISSION.body).keys()


def test_the_digest_of_a_body_does_not_depend_on_the_order_of_its_fields() -> None:
    reordered = CreateResponse.model_validate({"input": "eins", "model": "words"})
    assert canonical_digest(reordered) == canonical_digest(BODY)
    assert canonical_digest(CreateResponse(model="words", input="zwei")) != canonical_digest(BODY)


OPENED = "{{ messages[-1].content }}</think>{% if add_generation_prompt %}<think>\n{% endif %}"
VOCABULARY = (BUNDLED_MODEL / "tokenizer.json").read_text()
DEFAULTS = {"temperature": 0.6, "top_k": 20}


def accepted(lacks: tuple[str, ...], limit: int | None = None, **asked: Any) -> RequestBody:
    limits = PromptLimits("words", PromptFormat("words", VOCABULARY, OPENED), 100, 100, sampling_defaults=DEFAULTS)
    snapshot = QueueSnapshot(at=datetime.now(UTC), models={"words": ModelState(lacking=tuple(lacks))})
    body = BODY.request_body(SUBMISSION.prompt, DEFAULTS, **asked)
    submission = dataclasses.replace(SUBMISSION, body=body, limit_tokens=limit)
    return read_body(accepted_request(limits, snapshot, submission).body)


def test_a_request_stores_the_form_of_its_answer_and_the_sampling_that_engines_can_do() -> None:
    stored = accepted(())
    assert stored.answer_form == AnswerForm(opening="<think>", closing="</think>", opened=True)
    assert (stored.sampling.temperature, stored.defaulted) == (0.6, ("temperature", "top_k"))
    chats_only = accepted(("raw_prompt", "temperature", "top_k"))
    assert not chats_only.answer_form.opened
    assert (chats_only.sampling.greedy, chats_only.defaulted) == (True, ())


@pytest.mark.parametrize(
    ("asked", "limit", "most"),
    [(7, 40, 7), (90, 40, 90), (-1, 40, None), (None, 40, None), ("auto", 100, 75), ("auto", 40, 16), ("auto", 9, 0)],
)
def test_a_budget_of_thinking_is_a_number_that_leaves_room_for_the_answer(
    asked: Any, limit: int, most: int | None
) -> None:
    assert accepted((), limit, thinking_token_budget=asked).sampling.thinking_token_budget == most


def test_a_budget_that_nothing_can_keep_is_refused_by_name_unless_it_is_only_wished() -> None:
    with pytest.raises(InvalidRequest, match="cannot end its thinking"):
        accepted(("thinking_token_budget",), thinking_token_budget=3)
    body = BODY.request_body(SUBMISSION.prompt, {}, thinking_token_budget=3)
    wished = body.model_copy(update={"defaulted": ("thinking_token_budget",)}).without_defaults(
        ["thinking_token_budget"]
    )
    assert (wished.sampling.thinking_token_budget, wished.defaulted) == (None, ())
    never = PromptFormat("words", VOCABULARY, "{{ messages[-1].content }}")
    for asked, refused in ((3, True), ("auto", False)):
        body = BODY.request_body(SUBMISSION.prompt, {}, thinking_token_budget=asked)
        new = dataclasses.replace(SUBMISSION, body=body)
        if refused:
            with pytest.raises(InvalidRequest, match="no tags of thinking"):
                accepted_request(PromptLimits("words", never, 100, 100), None, new)
        else:
            assert "sampling" not in accepted_request(PromptLimits("words", never, 100, 100), None, new).body


def test_a_format_behind_thinking_is_refused_where_no_engine_can_do_it() -> None:
    assert "format_after_thinking" in accepted((), format=StoredFormat(type="json_object")).needs
    with pytest.raises(InvalidRequest, match="once the model has thought"):
        accepted(("format_after_thinking",), format=StoredFormat(type="json_object"))


def test_several_answers_are_of_the_lowest_of_their_tiers() -> None:
    tiers: tuple[ServiceTier, ...] = ("priority", "default")
    at = datetime.now(UTC)
    views = [RequestView(StoredRequest(tier=tier), None, 0, at) for tier in tiers]
    assert [tier_of_answers(some) for some in (views, views[:1])] == ["default", "priority"]
    assert [served_tier(asked) for asked in ("flex", "priority", "auto", None)] == [
        "flex",
        "priority",
        *["default"] * 2,
    ]


def test_a_prompt_with_a_clock_is_rendered_by_the_worker_as_it_was_counted() -> None:
    source = "{{ strftime_now('%M %S %f') }} {{ messages[0].content }}"
    clocked = PromptFormat("words", VOCABULARY, source)
    new = accepted_request(PromptLimits("words", clocked, 100, 100), None, SUBMISSION)
    body = read_body(new.body)
    assert datetime.fromisoformat(body.rendered_at).tzinfo is not None
    rendered = [ModelPrompt(new.instructions, new.input, body).encode(clocked) for _ in range(2)]
    assert rendered[0] == rendered[1]
    assert len(rendered[0]) == new.prompt_tokens


@pytest.mark.parametrize("literal", [False, True])
def test_how_schemas_are_read_is_stored_for_the_worker(literal: bool) -> None:
    words = PromptFormat("words", VOCABULARY, OPENED)
    limits = PromptLimits("words", words, 100, 100, literal_schemas=literal)
    assert read_body(accepted_request(limits, None, SUBMISSION).body).literal_schemas is literal


@pytest.mark.parametrize(("limit", "refused"), [(9, True), (10, False)])
def test_a_limit_below_the_shortest_answer_of_a_format_is_refused_with_that_number(limit: int, refused: bool) -> None:
    limits = PromptLimits("words", PromptFormat("words", VOCABULARY, None, {"eos_token": "<eos>"}), 100, 100)
    schema = {"type": "object", "properties": {"a": {"enum": ["bb", "c"]}}, "required": ["a"]}
    body = read_body({"format": {"type": "json_schema", "name": "n", "schema": schema}})
    asked = dataclasses.replace(SUBMISSION, body=body, limit_tokens=limit)
    if not refused:
        assert accepted_request(limits, None, asked).limit_tokens == limit
        return
    with pytest.raises(InvalidRequest, match="shortest answer in this format has 10 tokens") as caught:
        accepted_request(limits, None, asked)
    assert caught.value.param == "max_output_tokens"
