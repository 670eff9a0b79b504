"""Conversations over several responses: what came before, what came in, what is cut off, what is not stored."""

from typing import Any

import pytest

from models.upkeep.retention import delete_old_unstored_texts
from tests.integration.answering_worker import answering, events
from tests.integration.api_service import Api

PATH = "/v1/responses"


def create(api: Api, input: Any, **fields: Any) -> dict[str, Any]:
    answer = api.call("POST", PATH, json={"model": "words", "input": input} | fields)
    assert answer.status_code == 200, answer.json
    created: dict[str, Any] = answer.json
    return created


def stored_messages(api: Api, id: str) -> list[tuple[str, str]]:
    [row] = api.sql("select body -> 'messages' as messages from requests where id = :id", id=id)
    return [(turn["role"], turn["content"]) for turn in row.messages]


def test_a_conversation_goes_on_without_the_instructions_of_the_response_before(api: Api) -> None:
    system = {"role": "system", "content": "Be kind."}
    with answering(api, "one"):
        first = create(api, [system, {"role": "user", "content": "eins"}], instructions="Translate.")
        second = create(api, "zwei", previous_response_id=first["id"], instructions="Count.")
        third = create(api, [{"role": "user", "content": "drei"}], previous_response_id=second["id"])
    assert first["instructions"] == "Translate."
    assert stored_messages(api, second["id"]) == [
        ("system", "Count.\n\nBe kind."),
        ("user", "eins"),
        ("assistant", "one"),
        ("user", "zwei"),
    ]
    assert (second["previous_response_id"], second["instructions"]) == (first["id"], "Count.")
    assert third["instructions"] is None
    assert [role for role, _ in stored_messages(api, third["id"])] == ["system", "user", "assistant"] * 1 + [
        "user",
        "assistant",
        "user",
    ]


def test_the_items_that_a_response_answered_are_listed_page_by_page(api: Api) -> None:
    with answering(api, "one"):
        first = create(api, "eins", instructions="Translate.")
        second = create(api, "zwei", previous_response_id=first["id"])
    path = f"{PATH}/{second['id']}/input_items"
    listed = api.call("GET", f"{path}?order=asc&limit=2").json
    assert [(item["role"], item["content"][0]["text"]) for item in listed["data"]] == [
        ("user", "eins"),
        ("assistant", "one"),
    ]
    assert listed["has_more"]
    rest = api.call("GET", f"{path}?order=asc&after={listed['last_id']}").json
    assert ([item["content"][0]["text"] for item in rest["data"]], rest["has_more"]) == (["zwei"], False)
    newest = api.call("GET", path).json["data"]
    assert [item["content"][0]["text"] for item in newest] == ["zwei", "one", "eins"]
    assert api.call("GET", f"{path}?after=msg_none").status_code == 400
    assert api.other_tenant().call("GET", path).status_code == 404


def test_an_earlier_response_that_is_unknown_or_has_no_answer_is_refused(api: Api) -> None:
    waiting = api.submit("eins")
    for earlier in ("resp_" + "0" * 32, "nonsense", waiting["id"]):
        body = {"model": "words", "input": "a", "previous_response_id": earlier}
        answer = api.call("POST", PATH, json=body)
        error = answer.json["error"]
        assert (answer.status_code, error["code"]) == (400, "previous_response_not_found")
        assert error["param"] == "previous_response_id"
    with answering(api):
        first = create(api, "eins")
    body = {"model": "words", "input": "a", "previous_response_id": first["id"]}
    assert api.other_tenant().call("POST", PATH, json=body).status_code == 400


def test_truncation_leaves_the_oldest_turns_out_and_keeps_what_opens_the_conversation(api: Api) -> None:
    turns = [{"role": "system", "content": "Be kind."}]
    for n in range(4):
        turns += [{"role": "user", "content": f"q{n} " * 5}, {"role": "assistant", "content": f"a{n} " * 5}]
    turns.append({"role": "user", "content": "and now"})
    refused = api.call("POST", PATH, json={"model": "words", "input": turns})
    assert refused.json["error"]["code"] == "context_length_exceeded"
    with answering(api):
        answered = create(api, turns, truncation="auto")
    kept = stored_messages(api, answered["id"])
    assert kept[0] == ("system", "Be kind.")
    assert kept[-1] == ("user", "and now")
    assert len(kept) < len(turns)
    assert answered["usage"]["input_tokens"] <= 50
    assert answered["truncation"] == "auto"
    too_long = api.call("POST", PATH, json={"model": "words", "input": "a " * 60, "truncation": "auto"})
    assert too_long.json["error"]["code"] == "context_length_exceeded"


def test_a_prompts_tokens_are_counted_as_the_response_would_have_them(api: Api) -> None:
    with answering(api):
        first = create(api, "eins zwei", instructions="Translate.")
    body = {"model": "words", "input": "eins zwei", "instructions": "Translate."}
    counted = api.call("POST", f"{PATH}/input_tokens", json=body).json
    assert counted == {"object": "response.input_tokens", "input_tokens": first["usage"]["input_tokens"]}
    longer = api.call("POST", f"{PATH}/input_tokens", json=body | {"previous_response_id": first["id"]}).json
    assert longer["input_tokens"] > counted["input_tokens"]
    assert api.call("POST", f"{PATH}/input_tokens", json={"model": "words"}).json["error"]["param"] == "input"
    assert len(api.sql("select id from requests")) == 1


SECRET = "geheimnis"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (PATH, {"input": SECRET, "instructions": SECRET}),
        (PATH, {"input": [{"role": "user", "content": SECRET}, {"role": "user", "content": SECRET}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET}]}),
    ],
)
def test_what_is_not_to_be_stored_is_gone_once_it_is_answered(
    api: Api, path: str, fields: dict[str, Any], stream: bool
) -> None:
    with answering(api, SECRET):
        answer = api.call("POST", path, json={"model": "words", "store": False, "stream": stream} | fields)
        assert SECRET in answer.get_data(as_text=True)
        assert not stream or events(answer)
        answer.close()
    [row] = api.sql("select requests::text as whole, id, output_tokens from requests")
    assert SECRET not in row.whole
    assert row.output_tokens == 1  # figures stay
    left = api.call("GET", f"{PATH}/{row.id}").json
    assert (left["store"], left["output"]) == (False, [])
    assert api.call("GET", f"{PATH}/{row.id}/input_items").json["data"] == []
    body = {"model": "words", "input": "a", "previous_response_id": row.id}
    assert api.call("POST", PATH, json=body).json["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_that_is_not_stored_can_be_asked_for_again_by_its_key_until_upkeep_deletes_it(
    api: Api, stream: bool
) -> None:
    asked = {"model": "words", "messages": [{"role": "user", "content": "a"}], "store": False, "stream": stream}

    def ask() -> Any:
        answer = api.call("POST", "/v1/chat/completions", json=asked, headers={"Idempotency-Key": "k"})
        answer.get_data()
        answer.close()
        return answer

    with answering(api, SECRET):
        assert SECRET in ask().get_data(as_text=True)
        assert SECRET in ask().get_data(as_text=True)
    with api.engine.begin() as connection:
        assert delete_old_unstored_texts(connection, after_s=0, limit=10) == 1
    error = ask().json["error"]
    assert (error["param"], error["code"]) == ("Idempotency-Key", "response_not_stored")


@pytest.mark.unanswered
def test_upkeep_deletes_what_a_client_left_behind(api: Api) -> None:
    body = {"model": "words", "messages": [{"role": "user", "content": SECRET}], "store": False}
    assert api.call("POST", "/v1/chat/completions", json=body).status_code == 504
    api.submit("stored")
    with api.engine.begin() as connection:
        assert delete_old_unstored_texts(connection, after_s=3600, limit=10) == 0
        assert delete_old_unstored_texts(connection, after_s=0, limit=10) == 1
        assert delete_old_unstored_texts(connection, after_s=0, limit=10) == 0
    assert sorted(row.input for row in api.sql("select input from requests")) == ["", "stored"]


def test_what_is_not_stored_cannot_be_polled(refusing_api: Api) -> None:
    body = {"model": "words", "input": "a", "background": True, "store": False}
    answer = refusing_api.call("POST", PATH, json=body)
    assert (answer.status_code, answer.json["error"]["param"]) == (400, "store")
