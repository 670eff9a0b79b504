"""What a client asks of its answer's form, within bounds; every refusal names the field."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from inference.prompts.model_prompt import ModelPrompt
from protocol.chat.chat_schemas import CreateChatCompletion
from protocol.client_errors import field_path
from protocol.requests.options import MOST_SCHEMA_BYTES, MOST_SCHEMA_DEPTH, JsonSchema, stored_format
from protocol.responses.response_schemas import CreateResponse
from request_body import Sampling, StoredFormat, read_body, stored_form

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", 1, None]}}, "required": ["a"]}
SCHEMAS: TypeAdapter[Any] = TypeAdapter(JsonSchema)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def chat(**fields: Any) -> CreateChatCompletion:
    return CreateChatCompletion.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}
    )


def response(**fields: Any) -> CreateResponse:
    return CreateResponse.model_validate({"model": "m", "input": "Hi", **fields})


def kept(format: Any) -> dict[str, Any] | None:
    stored = stored_format(format)
    return None if stored is None else stored.model_dump(by_alias=True)


def test_a_format_is_stored_alike_whichever_call_asked_for_it() -> None:
    asked = chat(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}})
    text_of_schema = to_json(SCHEMA).decode()
    named = {
        "type": "json_schema",
        "name": "n",
        "schema": text_of_schema,
        "description": None,
        "strict": None,
        "pattern": None,
        "grammar": None,
    }
    assert kept(asked.response_format) == named
    text = response(text={"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}).text
    assert text is not None
    assert kept(text.format) == named
    for any_object in ({"type": "json_object"}, {"type": "json_object", "schema": {}}):
        assert stored_format(chat(response_format=any_object).response_format) == StoredFormat(type="json_object")
    object_like = {"type": "json_object", "schema": SCHEMA}  # llama.cpp's
    assert kept(chat(response_format=object_like).response_format) == named | {"name": "answer"}


@pytest.mark.parametrize(
    ("format", "field"),
    [
        ({"type": "yaml"}, "response_format"),
        ([], "response_format"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "n n", "schema": {}}}, "response_format.json_schema.name"),
        ({"type": "json_object", "schema": 5}, "response_format.schema"),
    ],
)
def test_another_format_is_refused_by_the_name_of_its_field(format: Any, field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        chat(response_format=format)
    assert field_path(caught.value.errors()[0]["loc"]) == field


@pytest.mark.parametrize(
    "schema",
    [
        {"description": "x" * MOST_SCHEMA_BYTES},
        nested(MOST_SCHEMA_DEPTH + 1),
        {"const": 2**63},
        {"const": ["a\0b"]},
        {"a\0b": 1},
        {"const": 10**4000},
    ],
)
def test_a_schema_that_is_too_much_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SCHEMAS.validate_python(schema)


def test_log_probabilities_are_asked_for_as_openais_calls_do() -> None:
    assert chat().asked_logprobs is None
    assert chat(logprobs=False).asked_logprobs is None
    assert chat(logprobs=True).asked_logprobs == 0
    assert chat(logprobs=True, top_logprobs=5).asked_logprobs == 5
    assert response().asked_logprobs is None
    assert response(top_logprobs=0).asked_logprobs is None
    assert response(include=["message.output_text.logprobs"]).asked_logprobs == 0
    assert response(include=["message.output_text.logprobs"], top_logprobs=20).asked_logprobs == 20


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
    ],
)
def test_other_numbers_of_log_probabilities_are_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        chat(**fields)
    assert field_path(caught.value.errors()[0]["loc"]) == field


DEFAULTS = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1}


@pytest.mark.parametrize(
    ("sent", "sampling", "defaulted"),
    [
        ({}, Sampling(0.6, 0.9, 20, repetition_penalty=1.1), tuple(DEFAULTS)),
        ({"temperature": 0}, Sampling(repetition_penalty=1.1), ("repetition_penalty",)),
        ({"temperature": 0, "repetition_penalty": 1}, Sampling(), ()),
        ({"temperature": 1, "top_k": 0}, Sampling(1, 0.9, 0, repetition_penalty=1.1), ("top_p", "repetition_penalty")),
        ({"top_p": 1}, Sampling(0.6, 1.0, 20, repetition_penalty=1.1), ("temperature", "top_k", "repetition_penalty")),
    ],
)
def test_the_models_own_sampling_is_in_force_where_a_client_leaves_it_out(sent, sampling, defaulted):
    body = chat(**sent).request_body(ModelPrompt("", "Hi"), DEFAULTS)
    assert (body.sampling, body.defaulted) == (sampling, defaulted)
    assert read_body(stored_form(body)) == body
    assert chat(**sent).request_body(ModelPrompt("", "Hi"), {}).defaulted == ()


def test_a_stream_that_samples_by_the_models_own_config_has_a_seed():
    assert chat(stream=True).request_body(ModelPrompt("", "Hi"), DEFAULTS).sampling.seed is not None
    assert chat(stream=True, temperature=0).request_body(ModelPrompt("", "Hi"), DEFAULTS).sampling.seed is None


@pytest.mark.parametrize(
    ("lacked", "sampling"),
    [
        (["min_p"], Sampling(0.6, 0.9, 20, repetition_penalty=1.1)),
        (["top_k"], Sampling(0.6, 0.9, repetition_penalty=1.1)),
        (["temperature"], Sampling(repetition_penalty=1.1)),
        (["temperature", "repetition_penalty"], Sampling()),
    ],
)
def test_engines_that_cannot_sample_as_the_model_wants_are_not_asked_to(lacked, sampling):
    body = chat().request_body(ModelPrompt("", "Hi"), DEFAULTS).without_defaults(lacked)
    assert body.sampling == sampling
    assert all(getattr(sampling, name) == DEFAULTS[name] for name in body.defaulted)
    asked = chat(top_k=5, temperature=0.5).request_body(ModelPrompt("", "Hi"), {})
    assert asked.without_defaults(lacked) == asked
