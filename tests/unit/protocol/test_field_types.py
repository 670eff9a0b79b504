"""Bodies of clients: one error is found for a body with millions of mistakes, and every list has a bound."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ValidationError

from protocol.chat.chat_schemas import CreateChatCompletion, CreateCompletion
from protocol.field_types import Body, only_beside
from protocol.responses.response_schemas import CreateResponse
from protocol.texts.text_schemas import CreateEmbeddings, CreateRerank
from webapp.routes import batches_api, chat_api, input_api, responses_api, texts_api, tokens_api, webhooks_api

APIS = (
    batches_api,
    chat_api,
    input_api,
    responses_api,
    texts_api,
    tokens_api,
    webhooks_api,
)  # imported, so that their bodies are known


class Shown(Body):
    stream: bool | None = None
    mark: Annotated[str, only_beside("stream", True, "only in a stream")] | None = None


def bodies(of: type[BaseModel] = Body) -> Iterator[type[BaseModel]]:
    for kind in of.__subclasses__():
        yield kind
        yield from bodies(kind)


def lists_in(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            yield schema
        for part in schema.values():
            yield from lists_in(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            yield from lists_in(part)


@pytest.mark.parametrize("body", sorted(set(bodies()), key=str))
def test_every_list_of_a_body_has_a_bound_and_ends_at_its_first_mistake(body: type[BaseModel]) -> None:
    for found in lists_in(body.__pydantic_core_schema__):
        assert found.get("fail_fast"), found
        assert "max_length" in found, found


def outcome(body: type[BaseModel], fields: dict[str, Any]) -> object:
    """The body, or what is wrong with it."""
    try:
        return body.model_validate(fields)
    except ValidationError as error:
        return [(one["loc"], one["type"]) for one in error.errors()]


@pytest.mark.parametrize("body", sorted(set(bodies()), key=str))
def test_a_null_field_that_has_a_default_is_as_if_left_out_and_the_document_says_so(body: type[BaseModel]) -> None:
    shown = body.model_json_schema()
    for name, field in body.model_fields.items():
        called = field.alias or name
        if not field.is_required():
            assert outcome(body, {called: None}) == outcome(body, {}), called
            assert '"type": "null"' in json.dumps(shown["properties"][called]), called


def test_a_null_format_and_a_null_field_that_is_needed_are_told_apart() -> None:
    text = {"type": "text", "text": "hello", "annotations": None, "role": None}
    asked = {"model": "m", "input": [{"role": "user", "content": [text], "type": None}], "magnus": None}
    assert CreateResponse.model_validate(asked | {"text": {"format": {"type": None}}}).magnus.priority == 0
    with pytest.raises(ValidationError):
        CreateResponse.model_validate(asked | {"model": None})


NEEDED: dict[type[BaseModel], dict[str, Any]] = {
    CreateChatCompletion: {"messages": [{"role": "user", "content": "a"}]},
    CreateCompletion: {"prompt": "a"},
    CreateResponse: {"input": "a"},
    CreateEmbeddings: {"input": "a"},
    CreateRerank: {"query": "a", "documents": ["a"]},
}


@pytest.mark.parametrize("body", NEEDED, ids=str)
def test_an_unknown_null_field_of_a_call_is_as_if_left_out_and_one_with_a_value_is_refused(
    body: type[BaseModel],
) -> None:
    plain = {"model": "m", **NEEDED[body]}
    unknown = dict.fromkeys(("functions", "function_call", "audio", "prediction", "prompt_logprobs", "moderation"))
    assert body.model_validate(plain | unknown) == body.model_validate(plain)
    with pytest.raises(ValidationError, match="extra_forbidden"):
        body.model_validate(plain | {"prediction": {"type": "content"}})


@pytest.mark.parametrize("content", [[1] * 1000, [{}] * 1000, [{"type": "text", "text": 1}] * 1000, ["a", {}] * 500])
def test_a_list_of_mistakes_has_one_error(content: list[Any]) -> None:
    with pytest.raises(ValidationError) as raised:
        CreateChatCompletion.model_validate({"model": "m", "messages": [{"role": "user", "content": content}] * 1000})
    assert raised.value.error_count() <= 3


def test_an_object_of_unknown_fields_has_one_error() -> None:
    with pytest.raises(ValidationError) as raised:
        CreateChatCompletion.model_validate({f"x{number}": 1 for number in range(1000)})
    assert raised.value.error_count() == 1


@pytest.mark.parametrize("body", [{"mark": "a", "stream": True}, {"mark": ""}, {"mark": None}, {}])
def test_a_field_may_stand_beside_the_value_that_it_needs_or_be_empty(body: dict[str, Any]) -> None:
    Shown.model_validate(body)


@pytest.mark.parametrize("stream", [None, False, "yes"])
def test_a_field_is_refused_by_its_own_name_where_the_value_that_it_needs_is_missing(stream: object) -> None:
    with pytest.raises(ValidationError) as caught:
        Shown.model_validate({"mark": "a", "stream": stream})
    assert (caught.value.errors()[-1]["loc"], caught.value.errors()[-1]["msg"]) == (
        ("mark",),
        "Value error, only in a stream",
    )
