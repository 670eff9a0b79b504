"""What a body of /v1/responses may ask, beyond the types of its fields."""

import pytest
from pydantic import ValidationError

from protocol.responses.response_schemas import CreateResponse, Message


def test_the_parts_of_a_message_are_one_text() -> None:
    parts = [{"type": "input_text", "text": "eins"}, {"type": "input_text", "text": " zwei"}]
    body = CreateResponse.model_validate({"model": "words", "input": [{"role": "user", "content": parts}]})
    assert isinstance(body.input, list)
    assert isinstance(body.input[0], Message)
    assert body.input[0].text == "eins zwei"


@pytest.mark.parametrize(
    "input",
    [
        " \n",
        [{"role": "user", "content": " "}],
        [{"role": "assistant", "content": "a"}],
        [{"role": "user", "content": "a"}, {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}],
    ],
    ids=["blank text", "blank message", "nothing of the user", "a call without its result"],
)
def test_a_body_without_a_question_is_refused(input: object) -> None:
    with pytest.raises(ValidationError):
        CreateResponse.model_validate({"model": "words", "input": input})
