"""From a client's messages to instructions, input and application."""

from inference.prompts.model_prompt import ModelPrompt
from protocol.requests.client_prompt import application_name, prompt_of_turns
from request_body import StoredTurn, stored_form


def turn(role: str, content: str) -> StoredTurn:
    return StoredTurn(role=role, content=content)


def test_one_user_message_is_the_input_and_what_the_system_said_before_joins_the_instructions() -> None:
    turns = [turn("system", "Be brief."), turn("developer", "In English."), turn("user", "eins")]
    assert prompt_of_turns("Translate.", turns) == ModelPrompt("Translate.\n\nBe brief.\n\nIn English.", "eins")
    assert prompt_of_turns(None, [turn("user", "eins")]) == ModelPrompt("", "eins")


def test_a_conversation_keeps_every_turn_and_reads_as_a_transcript() -> None:
    turns = [turn("user", "eins"), turn("assistant", "one"), turn("developer", "Shout."), turn("user", "zwei")]
    prompt = prompt_of_turns("Translate.", turns)
    assert prompt.input == "user: eins\n\nassistant: one\n\nsystem: Shout.\n\nuser: zwei"
    assert [one.role for one in prompt.body.messages] == ["system", "user", "assistant", "system", "user"]
    assert stored_form(prompt.body)["messages"][0] == {"role": "system", "content": "Translate."}
    assert [one.role for one in prompt_of_turns(None, turns).body.messages] == ["user", "assistant", "system", "user"]


def test_an_application_is_named_by_the_client_or_by_its_instructions() -> None:
    assert application_name({"application": "news"}, "Translate.") == "news"
    assert application_name({}, "Translate.") == application_name({"other": "x"}, "Translate.")
    assert application_name({}, "Translate.") != application_name({}, "Summarize.")
    assert len(application_name({"application": ""}, "")) == 12
