"""From a valid body to the row: what is stored, and which bodies mean the same."""

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest

from inference.model_prompt import ModelPrompt
from inference.prompt_format import PromptFormat
from models.client_requests import RequestView
from models.planning.queue_snapshot import QueueSnapshot
from models.tables import StoredRequest
from request_body import AnswerForm, RequestBody, StoredFormat, read_body, stored_form
from scheduling.request import SERVICE_TIERS, ServiceTier
from settings import BUNDLED_MODEL
from webapp.client_errors import InvalidRequest
from webapp.limits.prompt_limits import PromptLimits
from webapp.requests.submission import Submission, accepted_request, canonical_digest, served_tier, tier_of_answers
from webapp.responses.response_schemas import CreateResponse

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


def test_decoding_is_greedy_unless_the_client_asks_for_sampling() -> None:
    assert stored_form(SUBMISSION.body)["sampling"] == {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": None}
    sampled = asking(sampling={"temperature": 0.7, "top_p": 0.9, "seed": 5})
    assert stored_form(sampled.body)["sampling"] == {"temperature": 0.7, "top_p": 0.9, "top_k": 0, "seed": 5}


def test_what_the_engine_must_be_able_to_do_is_said_with_the_field_that_asks_for_it() -> None:
    assert SUBMISSION.needs == {}
    assert asking(sampling={"temperature": 0.0, "top_k": 5}).needs == {}  # greedy decoding samples nothing
    sampled = asking(
        sampling={"temperature": 0.7, "top_k": 5}, format={"type": "json_object"}, top_logprobs=0, min_tokens=3
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


def test_only_a_conversation_stores_its_messages() -> None:
    assert "messages" not in stored_form(SUBMISSION.body)
    messages = [{"role": "user", "content": "eins"}, {"role": "user", "content": "zwei"}]
    assert stored_form(read_body({"messages": messages}))["messages"] == messages


def test_the_digest_of_a_body_does_not_depend_on_the_order_of_its_fields() -> None:
    reordered = CreateResponse.model_validate({"input": "eins", "model": "words"})
    assert canonical_digest(reordered) == canonical_digest(BODY)
    assert canonical_digest(CreateResponse(model="words", input="zwei")) != canonical_digest(BODY)


OPENED = "{{ messages[-1].content }}</think>{% if add_generation_prompt %}<think>\n{% endif %}"
VOCABULARY = (BUNDLED_MODEL / "tokenizer.json").read_text()
DEFAULTS = {"temperature": 0.6, "top_k": 20}


def accepted(lacks: tuple[str, ...], **asked: Any) -> RequestBody:
    limits = PromptLimits("words", PromptFormat("words", VOCABULARY, OPENED), 100, 100, sampling_defaults=DEFAULTS)
    snapshot = QueueSnapshot(at=datetime.now(UTC), lacking={"words": lacks})
    body = BODY.request_body(SUBMISSION.prompt, DEFAULTS, **asked)
    return read_body(accepted_request(limits, snapshot, dataclasses.replace(SUBMISSION, body=body)).body)


def test_a_request_stores_the_form_of_its_answer_and_the_sampling_that_engines_can_do() -> None:
    stored = accepted(())
    assert stored.answer_form == AnswerForm(opening="<think>", closing="</think>", opened=True)
    assert (stored.sampling.temperature, stored.defaulted) == (0.6, ("temperature", "top_k"))
    chats_only = accepted(("raw_prompt", "temperature", "top_k"))
    assert not chats_only.answer_form.opened
    assert (chats_only.sampling.greedy, chats_only.defaulted) == (True, ())


def test_a_format_behind_thinking_is_refused_where_no_engine_can_do_it() -> None:
    assert "format_after_thinking" in accepted((), format=StoredFormat(type="json_object")).needs
    with pytest.raises(InvalidRequest, match="once the model has thought"):
        accepted(("format_after_thinking",), format=StoredFormat(type="json_object"))


def test_several_answers_are_of_the_lowest_of_their_tiers() -> None:
    tiers: tuple[ServiceTier, ...] = ("priority", "default")
    at = datetime.now(UTC)
    views = [RequestView(StoredRequest(priority=SERVICE_TIERS[tier]), None, 0, at) for tier in tiers]
    assert [tier_of_answers(some) for some in (views, views[:1])] == ["default", "priority"]
    assert [served_tier(asked) for asked in ("flex", "priority", "auto", None)] == [
        "flex",
        "priority",
        *["default"] * 2,
    ]
