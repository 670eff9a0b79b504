"""Models that think before they answer, and what a client may tell a chat template of it."""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from request_body import read_body
from settings import BUNDLED_MODEL, Settings
from tests.integration.answering_worker import answering, events
from tests.integration.api_service import Api
from tests.integration.conftest import running_api
from tests.unit.inference.published_templates import QWEN3

CHAT: dict[str, Any] = {"model": "thinking", "messages": [{"role": "user", "content": "Weather?"}]}
RESPONSE: dict[str, Any] = {"model": "thinking", "input": "Weather?"}
ANSWER = "<think>\nI look out.\n</think>\n\nIt rains."
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
FUNCTION = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TEMPERED = {"do_sample": True, "temperature": 0.6, "top_k": 20, "eos_token_id": 1}


@pytest.fixture(scope="module")
def thinking_settings(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    model = tmp_path_factory.mktemp("model") / "thinking"
    model.mkdir()
    shutil.copy(BUNDLED_MODEL / "tokenizer.json", model)
    (model / "chat_template.jinja").write_text(QWEN3)
    (model / "generation_config.json").write_text(json.dumps(TEMPERED))
    return Settings(database_url=module_database_url, model=str(model), wait_s=5)


@pytest.fixture
def thinking(thinking_settings: Settings) -> Iterator[Api]:
    for api in running_api(thinking_settings):
        api.sql("delete from requests")
        yield api


def test_a_chat_has_its_thinking_apart_from_its_answer(thinking: Api) -> None:
    with answering(thinking, ANSWER):
        [choice] = thinking.call("POST", "/v1/chat/completions", json=CHAT).json["choices"]
        history = [*CHAT["messages"], choice["message"], CHAT["messages"][0]]
        again = thinking.call("POST", "/v1/chat/completions", json=CHAT | {"messages": history})
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("I look out.", "It rains.")
    assert again.status_code == 200


def test_a_chat_that_is_cut_while_it_thinks_has_no_answer(thinking: Api) -> None:
    with answering(thinking, "<think>\nI lo", status="incomplete"):
        [choice] = thinking.call("POST", "/v1/chat/completions", json=CHAT).json["choices"]
        response = thinking.call("POST", "/v1/responses", json=RESPONSE).json
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("I lo", None)
    assert choice["finish_reason"] == "length"
    assert [(item["type"], item["status"]) for item in response["output"]] == [("reasoning", "incomplete")]


def test_usage_tells_tokens_of_thinking_apart(thinking: Api) -> None:
    streamed = CHAT | {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    with answering(thinking, ANSWER, output_tokens=12, reasoning_tokens=7):
        chat = thinking.call("POST", "/v1/chat/completions", json=CHAT | {"n": 2}).json["usage"]
        response = thinking.call("POST", "/v1/responses", json=RESPONSE).json["usage"]
        chunks = events(thinking.call("POST", "/v1/chat/completions", json=streamed))
        final = events(thinking.call("POST", "/v1/responses", json=RESPONSE | {"stream": True}))[-1]["response"]
    assert (chat["completion_tokens"], chat["completion_tokens_details"]) == (24, {"reasoning_tokens": 14})
    assert (response["output_tokens"], response["output_tokens_details"]) == (12, {"reasoning_tokens": 7})
    assert final["usage"] == response
    so_far = [chunk["usage"]["completion_tokens_details"]["reasoning_tokens"] for chunk in chunks]
    assert so_far[0] == 0 < so_far[1]
    assert so_far[-2:] == [7, 7]


def test_a_streamed_chat_thinks_answers_and_calls(thinking: Api) -> None:
    asked = CHAT | {"stream": True, "tools": [{"type": "function", "function": FUNCTION}]}
    with answering(thinking, ANSWER + CALL):
        deltas = [
            chunk["choices"][0]["delta"] for chunk in events(thinking.call("POST", "/v1/chat/completions", json=asked))
        ]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "I look out."
    assert "".join(delta.get("content") or "" for delta in deltas) == "It rains."
    assert [delta["tool_calls"][0]["function"]["name"] for delta in deltas if "tool_calls" in delta] == ["weather"]


@pytest.mark.parametrize(
    "text", [ANSWER, ANSWER + CALL, "<think>\nI look.</think>" + CALL, "<think>\nI lo", "It rains."]
)
def test_a_streamed_response_has_the_items_of_the_stored_one_and_resumes_anywhere(thinking: Api, text: str) -> None:
    asked = RESPONSE | {"stream": True, "tools": [{"type": "function", **FUNCTION}]}
    with answering(thinking, text):
        seen = events(thinking.call("POST", "/v1/responses", json=asked))
    final = seen[-1]["response"]
    assert [event["item"] for event in seen if event["type"] == "response.output_item.done"] == final["output"]
    said = {
        kind: "".join(event["delta"] for event in seen if event["type"] == f"response.{name}.delta")
        for kind, name in (("reasoning", "reasoning_text"), ("message", "output_text"))
    }
    for kind, deltas in said.items():
        assert deltas == "".join(item["content"][0]["text"] for item in final["output"] if item["type"] == kind)
    arguments = [event["delta"] for event in seen if event["type"] == "response.function_call_arguments.delta"]
    assert arguments == [item["arguments"] for item in final["output"] if item["type"] == "function_call"]
    numbers = [event["sequence_number"] for event in seen]
    assert numbers == sorted(set(numbers))
    for after in range(max(numbers) + 1):
        path = f"/v1/responses/{final['id']}?stream=true&starting_after={after}"
        rest = events(thinking.call("GET", path))
        assert [event["sequence_number"] for event in rest] == [number for number in numbers if number > after]
        late = "".join(event["delta"] for event in rest if event["type"] == "response.output_text.delta")
        assert said["message"].endswith(late)


def test_a_conversation_goes_on_with_what_was_thought(thinking: Api) -> None:
    tools = {"tools": [{"type": "function", **FUNCTION}]}
    with answering(thinking, "<think>\nI look out.\n</think>\n" + CALL):
        first = thinking.call("POST", "/v1/responses", json=RESPONSE | tools).json
    result = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "rain"}
    with answering(thinking, ANSWER):
        items = [{"role": "user", "content": "Weather?"}, *first["output"], result]
        by_hand = thinking.call("POST", "/v1/responses", json=RESPONSE | tools | {"input": items}).json
        named = [items[0], *({"type": "item_reference", "id": item["id"]} for item in first["output"]), result]
        by_name = thinking.call("POST", "/v1/responses", json=RESPONSE | tools | {"input": named}).json
        by_id = thinking.call(
            "POST", "/v1/responses", json=RESPONSE | tools | {"input": [result], "previous_response_id": first["id"]}
        ).json
    assert by_hand["usage"] == by_id["usage"] == by_name["usage"]
    listed = thinking.call("GET", f"/v1/responses/{by_id['id']}/input_items?order=asc").json["data"]
    assert [item["type"] for item in listed] == ["message", "reasoning", "function_call", "function_call_output"]
    [row] = thinking.sql("select body from requests order by arrived_at desc limit 1")
    assert [turn.reasoning for turn in read_body(row.body).messages] == [None, "I look out.", None]


MESSAGE = CHAT | {"max_tokens": 100}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("reason", "told"), [("loop", "loop"), ("limit", "max_output_tokens")])
def test_every_call_says_why_an_answer_is_incomplete(thinking: Api, reason: str, told: str, stream: bool) -> None:
    with answering(thinking, "It rains. It rains.", status="incomplete", finish_reason=reason):
        found = [
            thinking.call("POST", path, json=body | {"stream": stream})
            for path, body in (("/v1/chat/completions", CHAT), ("/v1/responses", RESPONSE), ("/v1/messages", MESSAGE))
        ]
        chat, response, message = [events(one) for one in found] if stream else [[one.json] for one in found]
    assert chat[-1]["magnus"]["incomplete_reason"] == told
    assert chat[-1]["choices"][0]["finish_reason"] == "length"
    last = response[-1]["response"] if stream else response[0]
    assert (last["status"], last["incomplete_details"]) == ("incomplete", {"reason": told})
    assert last["magnus"]["incomplete_reason"] == told
    stops = [one.get("delta", one).get("stop_reason") for one in message]
    assert "max_tokens" in stops


BUDGETS: list[tuple[str, dict[str, Any], int | None]] = [
    ("/v1/chat/completions", CHAT | {"thinking_token_budget": 9}, 9),
    ("/v1/chat/completions", CHAT | {"thinking_token_budget": "auto", "max_tokens": 200}, 150),
    ("/v1/chat/completions", CHAT | {"thinking_token_budget": -1}, None),
    ("/v1/completions", {"model": "thinking", "prompt": "<think>", "thinking_token_budget": 9}, 9),
    ("/v1/responses", RESPONSE | {"thinking_token_budget": 9}, 9),
    ("/v1/responses", RESPONSE | {"reasoning": {"max_tokens": 9}}, 9),
    ("/v1/responses", RESPONSE | {"reasoning": {"max_tokens": "auto"}, "max_output_tokens": 200}, 150),
    ("/v1/messages", MESSAGE | {"thinking": {"type": "enabled", "budget_tokens": 9}}, 9),
    ("/v1/messages", MESSAGE | {"thinking": {"type": "disabled", "budget_tokens": 9}}, None),
]


@pytest.mark.parametrize(("path", "body", "most"), BUDGETS)
@pytest.mark.parametrize("stream", [False, True])
def test_every_call_takes_a_budget_of_thinking(
    thinking: Api, path: str, body: dict[str, Any], most: int | None, stream: bool
) -> None:
    with answering(thinking, ANSWER):
        answer = thinking.call("POST", path, json=body | {"stream": stream})
        answer.get_data()
    assert answer.status_code == 200
    [row] = thinking.sql("select body from requests")
    assert read_body(row.body).sampling.thinking_token_budget == most


@pytest.mark.parametrize("text", ["<thi", "<think>", "<think>\nI lo", "<think>I look.</thin", "<think>I look.</think>"])
@pytest.mark.parametrize("stream", [False, True])
def test_no_call_tells_thinking_as_content_however_early_it_is_cut(thinking: Api, text: str, stream: bool) -> None:
    def called(path: str, body: dict[str, Any]) -> Any:
        answer = thinking.call("POST", path, json=body | {"stream": stream})
        return events(answer) if stream else answer.json

    with answering(thinking, text, status="incomplete", finish_reason="limit"):
        chat = called("/v1/chat/completions", CHAT)
        response = called("/v1/responses", RESPONSE)
        message = called("/v1/messages", MESSAGE)
    if stream:
        assert not any(chunk["choices"][0]["delta"].get("content") for chunk in chat)
        assert not any(event["type"] == "response.output_text.delta" for event in response)
        assert not any(event.get("delta", {}).get("type") == "text_delta" for event in message)
        return
    assert not chat["choices"][0]["message"]["content"]
    assert not any(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])
    assert not any(block.get("text") for block in message["content"])


@pytest.mark.parametrize(
    ("told", "prompt_tokens"),
    [
        ({"chat_template_kwargs": {"enable_thinking": False}}, "more"),
        ({"reasoning_effort": "none"}, "more"),
        ({"reasoning_effort": "high"}, "same"),
        ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, "same"),
    ],
)
def test_what_the_template_is_told_changes_the_prompt(thinking: Api, told: dict[str, Any], prompt_tokens: str) -> None:
    with answering(thinking, ANSWER):
        plain = thinking.call("POST", "/v1/chat/completions", json=CHAT).json["usage"]["prompt_tokens"]
        asked = thinking.call("POST", "/v1/chat/completions", json=CHAT | told).json["usage"]["prompt_tokens"]
    assert ("same" if asked == plain else "more") == prompt_tokens


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", CHAT | {"chat_template_kwargs": {"budget": 5}}, "chat_template_kwargs.budget"),
        ("/v1/chat/completions", CHAT | {"chat_template_kwargs": {"messages": "x"}}, "chat_template_kwargs.messages"),
        ("/v1/responses", RESPONSE | {"chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs.tools"),
        ("/v1/chat/completions", CHAT | {"chat_template_kwargs": {"enable_thinking": [1]}}, None),
        ("/v1/chat/completions", CHAT | {"reasoning_effort": "much"}, "reasoning_effort"),
        ("/v1/chat/completions", CHAT | {"thinking_token_budget": -2}, None),
        ("/v1/responses", RESPONSE | {"reasoning": {"max_tokens": 1.5}}, None),
    ],
)
def test_what_the_template_does_not_know_is_refused_by_name(
    thinking: Api, path: str, body: dict[str, Any], param: str | None
) -> None:
    answer = thinking.call("POST", path, json=body)
    assert answer.status_code in (400, 422)
    assert param is None or answer.json["error"]["param"] == param


def test_sampling_is_the_models_own_where_a_client_sends_none(thinking: Api) -> None:
    with answering(thinking, ANSWER):
        own = thinking.call("POST", "/v1/responses", json=RESPONSE).json
        greedy = thinking.call("POST", "/v1/responses", json=RESPONSE | {"temperature": 0}).json
    assert (own["temperature"], greedy["temperature"]) == (0.6, 0)
    bodies = [read_body(row.body) for row in thinking.sql("select body from requests order by arrived_at")]
    assert [body.defaulted for body in bodies] == [("temperature", "top_k"), ()]
    assert [body.sampling.top_k for body in bodies] == [20, 0]
