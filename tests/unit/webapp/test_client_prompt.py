"""From a client's messages to instructions, input and application."""

from webapp.client_prompt import ClientPrompt, Turn, application_name, prompt_of_turns


def test_one_user_message_is_the_input_and_what_the_system_said_before_joins_the_instructions() -> None:
    turns = [Turn("system", "Be brief."), Turn("developer", "In English."), Turn("user", "eins")]
    assert prompt_of_turns("Translate.", turns) == ClientPrompt("Translate.\n\nBe brief.\n\nIn English.", "eins")
    assert prompt_of_turns(None, [Turn("user", "eins")]) == ClientPrompt("", "eins")


def test_a_conversation_keeps_every_turn_and_reads_as_a_transcript() -> None:
    turns = [Turn("user", "eins"), Turn("assistant", "one"), Turn("developer", "Shout."), Turn("user", "zwei")]
    prompt = prompt_of_turns("Translate.", turns)
    assert prompt.input == "user: eins\n\nassistant: one\n\nsystem: Shout.\n\nuser: zwei"
    assert [turn.role for turn in prompt.messages] == ["system", "user", "assistant", "system", "user"]
    assert prompt.stored_messages[0] == {"role": "system", "content": "Translate."}
    assert [turn.role for turn in prompt_of_turns(None, turns).messages] == ["user", "assistant", "system", "user"]


def test_an_application_is_named_by_the_client_or_by_its_instructions() -> None:
    assert application_name({"application": "news"}, "Translate.") == "news"
    assert application_name({}, "Translate.") == application_name({"other": "x"}, "Translate.")
    assert application_name({}, "Translate.") != application_name({}, "Summarize.")
    assert len(application_name({"application": ""}, "")) == 12
