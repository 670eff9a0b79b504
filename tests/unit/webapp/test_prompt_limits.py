"""From messages to instructions and input, to tokens, to an application."""

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from inference.prompt_format import PromptFormat
from webapp.client_errors import InvalidRequest, NotFound
from webapp.prompt_limits import ClientPrompt, PromptLimits, Turn, application_of, prompt_of


@pytest.fixture(scope="module")
def served() -> PromptLimits:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    return PromptLimits(
        "words", PromptFormat("words", tokenizer.to_str(), None), max_prompt_tokens=5, max_output_tokens=9
    )


def test_one_user_message_is_the_input_and_what_the_system_said_before_joins_the_instructions() -> None:
    turns = [Turn("system", "Be brief."), Turn("developer", "In English."), Turn("user", "eins")]
    assert prompt_of("Translate.", turns) == ClientPrompt("Translate.\n\nBe brief.\n\nIn English.", "eins")
    assert prompt_of(None, [Turn("user", "eins")]) == ClientPrompt("", "eins")


def test_a_conversation_keeps_every_turn_and_reads_as_a_transcript() -> None:
    turns = [Turn("user", "eins"), Turn("assistant", "one"), Turn("developer", "Shout."), Turn("user", "zwei")]
    prompt = prompt_of("Translate.", turns)
    assert prompt.input == "user: eins\n\nassistant: one\n\nsystem: Shout.\n\nuser: zwei"
    assert [turn.role for turn in prompt.messages] == ["system", "user", "assistant", "system", "user"]
    assert prompt.stored_messages[0] == {"role": "system", "content": "Translate."}
    assert [turn.role for turn in prompt_of(None, turns).messages] == ["user", "assistant", "system", "user"]


def test_an_application_is_named_by_the_client_or_by_its_instructions() -> None:
    assert application_of({"application": "news"}, "Translate.") == "news"
    assert application_of({}, "Translate.") == application_of({"other": "x"}, "Translate.")
    assert application_of({}, "Translate.") != application_of({}, "Summarize.")
    assert len(application_of({"application": ""}, "")) == 12


def test_a_prompt_may_be_as_long_as_the_bound_and_not_longer(served: PromptLimits) -> None:
    counted = served.count(ClientPrompt("Translate", "a b c d"), param="input")
    assert (counted.prompt_tokens, counted.input_tokens) == (5, 4)
    with pytest.raises(InvalidRequest, match="at most 5 tokens, but yours has 6 tokens") as caught:
        served.count(ClientPrompt("Translate", "a b c d e"), param="input")
    assert (caught.value.param, caught.value.code) == ("input", "context_length_exceeded")


def test_text_that_no_vocabulary_could_hold_in_so_few_tokens_is_not_even_read(served: PromptLimits) -> None:
    with pytest.raises(InvalidRequest, match="1,281 characters"):
        served.count(ClientPrompt("", "x" * 1281), param="input")


def test_an_answer_may_be_as_long_as_the_bound_and_not_longer(served: PromptLimits) -> None:
    assert served.limit(None, param="max_output_tokens") == 9
    assert served.limit(9, param="max_output_tokens") == 9
    with pytest.raises(InvalidRequest, match="at most 9 tokens") as caught:
        served.limit(10, param="max_tokens")
    assert caught.value.param == "max_tokens"


def test_only_the_served_model_exists(served: PromptLimits) -> None:
    served.check("words")
    with pytest.raises(NotFound, match="'words'") as caught:
        served.check("gpt")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")
