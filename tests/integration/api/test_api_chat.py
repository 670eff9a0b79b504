"""The older calls that wait: chat and completions."""

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.integration.api_service import Api, ApiAnswer
from tests.integration.database_stage import eventually

CHAT = {
    "model": "words",
    "messages": [{"role": "system", "content": "Translate."}, {"role": "user", "content": "eins"}],
}
RESPONSE = {"model": "words", "input": "eins", "background": True}
PROMPT = {"model": "words", "prompt": "eins zwei"}


def served(api: Api, ask: Callable[[], object], **columns: str) -> None:
    """Makes a call, and ends its request meanwhile as a worker does."""
    values = {"status": "completed", "output_text": "one", "error": None, "logprobs": None, "finish_reason": None}
    values |= columns

    def serve() -> None:
        eventually(lambda: api.sql("select id from requests"))
        api.sql(
            """update requests set status = :status, output_text = :output_text, output_tokens = 1,
            error = cast(:error as jsonb), logprobs = cast(:logprobs as jsonb), finished_at = clock_timestamp(),
            finish_reason = :finish_reason""",
            **values,
        )

    worker = threading.Thread(target=serve)
    worker.start()
    ask()
    worker.join()


def ended(api: Api, path: str, body: Mapping[str, object], **columns: str) -> tuple[int, dict[str, Any]]:
    answers: list[ApiAnswer] = []
    served(api, lambda: answers.append(api.call("POST", path, json=body)), **columns)
    return answers[0].status_code, answers[0].json


def test_a_chat_waits_for_its_answer(api: Api) -> None:
    status, body = ended(api, "/v1/chat/completions", CHAT)
    assert status == 200
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "one", "refusal": None, "tool_calls": None},
            "finish_reason": "stop",
            "logprobs": None,
        }
    ]
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    id_there = str(body["id"]).replace("chatcmpl-", "resp_")
    assert api.call("GET", f"/v1/responses/{id_there}").json["status"] == "completed"


def test_a_completion_waits_for_its_answer(api: Api) -> None:
    status, body = ended(api, "/v1/completions", PROMPT | {"stop": "END", "max_tokens": 7, "seed": 1})
    assert status == 200
    assert body["choices"] == [{"index": 0, "text": "one", "finish_reason": "stop", "logprobs": None}]
    [row] = api.sql("select limit_tokens, body from requests")
    assert (row.limit_tokens, row.body["stop"], row.body["sampling"]["seed"]) == (7, ["END"], 1)


def test_an_answer_cut_off_at_its_limit_says_length(api: Api) -> None:
    _, body = ended(api, "/v1/completions", PROMPT, status="incomplete")
    assert body["choices"][0]["finish_reason"] == "length"


def test_a_failed_request_is_an_error_that_can_be_tried_again(api: Api) -> None:
    status, body = ended(
        api, "/v1/completions", PROMPT, status="failed", error='{"code": "out_of_memory", "message": "Too long."}'
    )
    assert status == 502
    assert body["error"]["code"] == "out_of_memory"


def test_a_request_that_somebody_cancels_is_an_error(api: Api) -> None:
    status, body = ended(api, "/v1/completions", PROMPT, status="cancelled")
    assert (status, body["error"]["code"]) == (400, "cancelled")


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", PROMPT)])
@pytest.mark.unanswered
def test_without_an_answer_in_time_the_request_is_cancelled(api: Api, path: str, body: dict[str, object]) -> None:
    answer = api.call("POST", path, json=body)
    assert answer.status_code == 504
    assert answer.json["error"]["code"] == "timeout"
    assert [row.status for row in api.sql("select status from requests")] == ["cancelled"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", CHAT | {"messages": []}, "messages"),
        ("/v1/chat/completions", CHAT | {"messages": [{"role": "assistant", "content": "a"}]}, "messages"),
        ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": "eins " * 60}]}, "messages"),
        ("/v1/chat/completions", CHAT | {"n": 129}, "n"),
        ("/v1/chat/completions", CHAT | {"n": 128, "logprobs": True, "top_logprobs": 20}, "logprobs"),
        ("/v1/chat/completions", CHAT | {"max_completion_tokens": 65}, "max_completion_tokens"),
        ("/v1/chat/completions", CHAT | {"max_tokens": 65}, "max_tokens"),
        ("/v1/chat/completions", CHAT | {"frequency_penalty": 2.5}, "frequency_penalty"),
        ("/v1/chat/completions", CHAT | {"response_format": {"type": "yaml"}}, "response_format"),
        ("/v1/chat/completions", CHAT | {"top_logprobs": 3}, "top_logprobs"),
        ("/v1/completions", PROMPT | {"prompt": " "}, "prompt"),
        ("/v1/completions", PROMPT | {"stop": ["a"] * 5}, "stop"),
        ("/v1/completions", PROMPT | {"model": "gpt-9"}, "model"),
    ],
)
def test_a_bad_field_of_a_chat_is_named(refusing_api: Api, path: str, body: dict[str, object], param: str) -> None:
    answer = refusing_api.call("POST", path, json=body)
    assert 400 <= answer.status_code < 500
    assert answer.json["error"]["param"] == param


@pytest.mark.parametrize(("path", "id_of"), [("/v1/chat/completions", "chatcmpl-"), ("/v1/completions", "cmpl-")])
def test_an_answer_tells_that_it_was_led_to_its_end(api: Api, path: str, id_of: str) -> None:
    _, body = ended(api, path, CHAT if "chat" in path else PROMPT, finish_reason="landed")
    assert (body["choices"][0]["finish_reason"], body["magnus"]["landed"]) == ("stop", True)
    response = api.call("GET", f"/v1/responses/{body['id'].replace(id_of, 'resp_')}").json
    assert (response["status"], response["magnus"]["landed"]) == ("completed", True)


def test_log_probabilities_and_a_format_are_stored_and_come_back_as_openai_shows_them(api: Api) -> None:
    top = {"token": "one", "logprob": -0.25, "bytes": [111, 110, 101]}
    entry = top | {"top_logprobs": [top]}
    schema = {"name": "n", "schema": {"type": "object"}}
    asked = CHAT | {
        "logprobs": True,
        "top_logprobs": 1,
        "response_format": {"type": "json_schema", "json_schema": schema},
    }
    status, body = ended(api, "/v1/chat/completions", asked, logprobs=json.dumps([entry]))
    assert status == 200
    assert body["choices"][0]["logprobs"] == {"content": [entry], "refusal": None}
    [row] = api.sql("select body, needs from requests")
    assert row.needs == ["response_format", "logprobs"]
    response = api.call("GET", f"/v1/responses/{body['id'].replace('chatcmpl-', 'resp_')}").json
    assert response["output"][0]["content"][0]["logprobs"] == [entry]
    assert response["text"]["format"] == {"type": "json_schema", "description": None, "strict": None} | schema
    assert response["top_logprobs"] == 1
    [listed] = api.call("GET", "/v1/responses").json["data"]
    assert listed["output"][0]["content"][0]["logprobs"] == []  # a page of them could be a hundred megabytes


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", CHAT | {"response_format": {"type": "json_object"}}, "response_format"),
        ("/v1/chat/completions", CHAT | {"logprobs": True}, "logprobs"),
        ("/v1/responses", RESPONSE | {"text": {"format": {"type": "json_object"}}}, "text.format"),
        ("/v1/responses", RESPONSE | {"include": ["message.output_text.logprobs"]}, "include"),
        ("/v1/responses", RESPONSE | {"top_logprobs": 1}, "top_logprobs"),
        ("/v1/responses", RESPONSE | {"temperature": 0.5}, "temperature"),
    ],
)
def test_what_no_engine_of_the_model_can_do_is_refused_by_name_with_a_remedy(
    refusing_api: Api, path: str, body: dict[str, object], param: str
) -> None:
    state = {"version": 3, "models": {"words": {"lacking": ["logprobs", "response_format", "temperature"]}}}
    refusing_api.sql(
        """insert into service_state (name, value) values ('planner', cast(:state as jsonb))
        on conflict (name) do update set value = excluded.value, updated_at = clock_timestamp()""",
        state=json.dumps(state),
    )
    eventually(lambda: refusing_api.call("POST", path, json=body).status_code == 400)
    error = refusing_api.call("POST", path, json=body).json["error"]
    assert (error["param"], error["code"]) == (param, "unsupported_value")
    assert ":" in error["message"]
