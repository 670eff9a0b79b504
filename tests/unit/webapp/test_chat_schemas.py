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


def test_an_answers_message_can_be_sent_back_with_every_field_that_it_has() -> None:
    answer: dict[str, object] = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": None,
        "function_call": None,
        "audio": None,
        "annotations": [],
    }
    question = {"role": "user", "content": "b"}
    chat = CreateChatCompletion.model_validate({"model": "words", "messages": [question, answer, question]})
    assert [message.text for message in chat.messages] == ["b", "", "b"]


@pytest.mark.parametrize("field", ["refusal", "tool_calls", "function_call", "audio"])
def test_history_that_says_more_than_text_is_refused(field: str) -> None:
    answer = {"role": "assistant", "content": "a", field: [{"id": "1"}]}
    with pytest.raises(ValidationError):
        CreateChatCompletion.model_validate({"model": "words", "messages": [answer, {"role": "user", "content": "b"}]})


@pytest.mark.parametrize(("field", "value"), [("repetition_penalty", 1.0), ("min_p", 0), ("top_k", -1)])
def test_extensions_of_others_are_accepted_where_they_ask_for_nothing(field: str, value: float) -> None:
    asked = {"model": "words", "prompt": "eins"}
    CreateCompletion.model_validate(asked | {field: value})
    CreateCompletion.model_validate(asked | {field: None})
    with pytest.raises(ValidationError):
        CreateCompletion.model_validate(asked | {field: 0.5})


def test_a_stream_has_options_and_nothing_else_has() -> None:
    asked = {"model": "words", "prompt": "eins", "stream_options": {"include_usage": True}}
    assert CreateCompletion.model_validate(asked | {"stream": True}).includes_usage
    with pytest.raises(ValidationError, match="only with stream"):
        CreateCompletion.model_validate(asked)
