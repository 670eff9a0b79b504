"""What the older calls accept."""

import pytest
from pydantic import ValidationError

from webapp.chat_schemas import CreateChatCompletion, CreateCompletion


@pytest.mark.parametrize(("stop", "stops"), [(None, []), ("END", ["END"]), (["a", "b"], ["a", "b"])])
def test_stop_strings_are_a_list_however_they_were_sent(stop: object, stops: list[str]) -> None:
    assert CreateCompletion.model_validate({"model": "words", "prompt": "eins", "stop": stop}).stops == stops


def test_a_blank_prompt_is_refused() -> None:
    with pytest.raises(ValidationError, match="must not be empty"):
        CreateCompletion(model="words", prompt=" ")


@pytest.mark.parametrize("last", [{"role": "assistant", "content": "a"}, {"role": "user", "content": " "}])
def test_a_chat_whose_last_message_asks_nothing_is_refused(last: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="the last message must be the user's"):
        CreateChatCompletion.model_validate({"model": "words", "messages": [{"role": "user", "content": "a"}, last]})
