"""Errors name the field in the client's own terms."""

import pytest
from pydantic import ValidationError

from protocol.client_errors import CLIENT_ERRORS, ClientError, field_path, validation_message
from protocol.responses.response_schemas import CreateResponse

VALID = {"model": "m", "input": "a"}


def refusal(**fields: object) -> tuple[str | None, str]:
    with pytest.raises(ValidationError) as caught:
        CreateResponse.model_validate({k: v for k, v in (VALID | fields).items() if v is not ...})
    first = caught.value.errors(include_url=False)[0]
    return field_path(first["loc"]), validation_message(first, field_path(first["loc"]))


@pytest.mark.parametrize(
    ("location", "param"),
    [
        (("model",), "model"),
        (("input", "<text>"), "input"),
        (("input", "<list>", 0, "content", "<list>", 2, "text"), "input[0].content[2].text"),
        (("metadata", "ticket", "[key]"), "metadata.ticket"),
        (("metadata", "x" * 1000), "metadata." + "x" * 64),
        ((), None),
    ],
)
def test_a_location_is_written_as_the_client_would(location: tuple[str | int, ...], param: str | None) -> None:
    assert field_path(location) == param


def test_messages_are_sentences_that_name_the_field() -> None:
    assert refusal(model=...) == ("model", "Missing required parameter: 'model'.")
    assert refusal(max_tokens=5) == ("max_tokens", "Unknown parameter: 'max_tokens'.")
    assert refusal(conversation="c")[1] == "Unsupported parameter: 'conversation'."
    assert refusal(input=5)[1] == "Invalid 'input': must be a text or a list."
    assert refusal(input="a\0")[1] == "Invalid 'input': text must not contain NUL."
    assert refusal(input=" ")[1] == "Invalid 'input': must not be empty."
    assert refusal(temperature=3)[1] == "Invalid 'temperature': Input should be less than or equal to 2."


def test_a_body_that_is_no_object_is_called_that() -> None:
    with pytest.raises(ValidationError) as caught:
        CreateResponse.model_validate([])
    assert validation_message(caught.value.errors()[0], None) == "The body must be a JSON object."


def test_every_client_error_has_a_status_in_the_table() -> None:
    assert set(ClientError.__subclasses__()) <= set(CLIENT_ERRORS)
    assert all(400 <= status < 600 for status, *_ in CLIENT_ERRORS.values())
