"""What clients send by habit: understood where it is harmless, refused by name where it would change the answer."""

import gzip
import zlib
from typing import Any

import pytest

from settings import VERSION, Settings
from tests.integration.answering_worker import answering
from tests.integration.api_service import Api
from tests.integration.conftest import running_api

CHAT = {"model": "words", "messages": [{"role": "user", "content": "eins"}]}
OPEN = {
    "messages": [*CHAT["messages"], {"role": "assistant", "content": "On"}],
    "continue_final_message": True,
    "add_generation_prompt": False,
}
RESPONSE = {"model": "words", "input": "eins"}
WHO = {
    "user": "u",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "service_tier": "auto",
    "prompt_cache_options": {"ttl": "24h"},
}
NEUTRAL = {"repetition_penalty": 1.0, "min_p": 0, "top_k": -1, "ignore_eos": False, "stop_token_ids": []}
NOTHING = {"repetition_penalty": None, "min_p": None, "top_k": None, "stop_token_ids": None, "min_tokens": None}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT | WHO | NEUTRAL),
        ("/v1/chat/completions", CHAT | NOTHING | {"modalities": ["text"], "verbosity": "medium", "n": 1}),
        ("/v1/chat/completions", CHAT | {"tools": [], "tool_choice": "auto", "add_generation_prompt": True}),
        ("/v1/chat/completions", CHAT | {"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}}),
        ("/v1/responses", RESPONSE | WHO | NEUTRAL),
        ("/v1/responses", RESPONSE | NOTHING | {"text": {"verbosity": "medium", "format": {"type": "text"}}}),
        ("/v1/responses", RESPONSE | {"reasoning": {"summary": "auto"}, "store": True}),
        ("/v1/responses", RESPONSE | {"include": ["reasoning.encrypted_content"], "truncation": "disabled"}),
        ("/v1/responses/", RESPONSE),
        ("/v1/chat/completions/", CHAT),
    ],
)
def test_what_asks_for_nothing_is_accepted_and_needs_nothing(api: Api, path: str, body: dict[str, Any]) -> None:
    with answering(api):
        assert api.call("POST", path, json=body).status_code == 200
    [row] = api.sql("select needs from requests")
    assert row.needs == []


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", CHAT | {"reasoning_effort": "high"}, "reasoning_effort"),
        ("/v1/chat/completions", CHAT | {"verbosity": "low"}, "verbosity"),
        ("/v1/chat/completions", CHAT | {"modalities": ["audio"]}, "modalities[0]"),
        ("/v1/chat/completions", CHAT | {"web_search_options": {}}, "web_search_options"),
        ("/v1/responses", RESPONSE | {"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ("/v1/responses", RESPONSE | {"text": {"verbosity": "low"}}, "text.verbosity"),
        ("/v1/responses", RESPONSE | {"tools": [{"type": "computer_use"}]}, "tools[0]"),
        ("/v1/responses", RESPONSE | {"include": ["something"]}, "include[0]"),
        ("/v1/responses", RESPONSE | {"prompt": {"id": "p"}}, "prompt"),
        ("/v1/responses", RESPONSE | {"conversation": "c"}, "conversation"),
        ("/v1/responses", RESPONSE | {"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ("/v1/responses", RESPONSE | {"input": [{"type": "item_reference", "id": f"msg_{0:032x}"}]}, "input"),
        ("/v1/responses", RESPONSE | {"input": [{"type": "computer_call"}]}, "input[0]"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(
    refusing_api: Api, path: str, body: dict[str, Any], param: str
) -> None:
    answer = refusing_api.call("POST", path, json=body)
    assert (answer.status_code, answer.json["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("path", "body", "needs", "asked"),
    [
        ("/v1/chat/completions", CHAT | {"reasoning_effort": "none"}, ["reasoning"], {"reasoning": "none"}),
        ("/v1/responses", RESPONSE | {"reasoning": {"effort": "none"}}, ["reasoning"], {"reasoning": "none"}),
        ("/v1/chat/completions", CHAT | OPEN, ["continue_final_message"], {"continues": True}),
    ],
)
def test_how_the_chat_template_ends_the_prompt_is_stored_for_the_worker(
    api: Api, path: str, body: dict[str, Any], needs: list[str], asked: dict[str, Any]
) -> None:
    with answering(api):
        assert api.call("POST", path, json=body).status_code == 200
    [row] = api.sql("select needs, body from requests")
    assert (row.needs, row.body.items() >= asked.items()) == (needs, True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"continue_final_message": True}, "continue_final_message"),
        (OPEN | {"messages": [*CHAT["messages"], {"role": "assistant", "content": ""}]}, "continue_final_message"),
        (OPEN | {"add_generation_prompt": True}, "add_generation_prompt"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
    ],
)
def test_only_an_answer_of_the_assistant_can_be_continued(
    refusing_api: Api, fields: dict[str, Any], param: str
) -> None:
    answer = refusing_api.call("POST", "/v1/chat/completions", json=CHAT | fields)
    assert (answer.status_code, answer.json["error"]["param"]) == (400, param)


def test_a_conversation_of_the_system_alone_is_answered(api: Api) -> None:
    system = [{"role": "system", "content": "Write."}]
    with answering(api):
        assert api.call("POST", "/v1/chat/completions", json=CHAT | {"messages": system}).status_code == 200
        first = api.call("POST", "/v1/responses", json=RESPONSE | {"input": system, "instructions": "Well."})
        assert first.status_code == 200
        again = api.call("POST", "/v1/responses", json=RESPONSE | {"previous_response_id": first.json["id"]})
        assert again.status_code == 200
    items = api.call("GET", f"/v1/responses/{again.json['id']}/input_items?order=asc").json["data"]
    assert [(one["role"], one["content"][0]["text"]) for one in items] == [
        ("system", "Write."),
        ("assistant", "one"),
        ("user", "eins"),
    ]


def test_unknown_nulls_and_roles_of_parts_in_the_history_say_nothing(api: Api) -> None:
    part = {"type": "text", "text": "one", "role": "assistant", "refusal": None, "audio": None}
    history = [*CHAT["messages"], {"role": "assistant", "content": [part], "provider": None}, *CHAT["messages"]]
    items = [{"role": "user", "content": "eins", "phase": None}, {"role": "assistant", "content": [part]}]
    with answering(api):
        assert api.call("POST", "/v1/chat/completions", json=CHAT | {"messages": history}).status_code == 200
        assert api.call("POST", "/v1/responses", json=RESPONSE | {"input": items}).status_code == 200
        unknown = {"role": "user", "content": "eins", "x": 1}
        refused = api.call("POST", "/v1/chat/completions", json=CHAT | {"messages": [unknown]})
    assert refused.json["error"]["param"] == "messages[0].x"


def test_tools_that_only_openai_runs_are_left_out_with_a_note(api: Api) -> None:
    hosted: list[dict[str, Any]] = [
        {"type": "web_search", "external_web_access": True},
        {"type": "namespace", "name": "n", "tools": []},
        {"type": "mcp", "server_label": "s", "server_url": "https://example.com"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "web_search_preview_2025_03_11"},
    ]
    asked = RESPONSE | {"tools": hosted, "client_metadata": {"x-codex-installation-id": "1"}}
    with answering(api):
        answered = api.call("POST", "/v1/responses", json=asked).json
    assert (answered["tools"], answered["magnus"]["dropped_tools"]) == ([], sorted(one["type"] for one in hosted))


def test_an_item_is_resolved_by_its_id_as_if_it_had_been_sent(api: Api) -> None:
    with answering(api, "one two"):
        first = api.call("POST", "/v1/responses", json=RESPONSE).json
    asked = api.call("GET", f"/v1/responses/{first['id']}/input_items").json["data"]
    following = {"role": "user", "content": "zwei"}
    references = [{"type": "item_reference", "id": one["id"]} for one in (*asked, *first["output"])]
    with answering(api):
        by_id = api.call("POST", "/v1/responses", json=RESPONSE | {"input": [*references, following]}).json
        by_hand = api.call(
            "POST", "/v1/responses", json=RESPONSE | {"input": [*asked, *first["output"], following]}
        ).json
    rows = {row.id: row.input for row in api.sql("select id, input from requests")}
    assert rows[by_id["id"]] == rows[by_hand["id"]] == "user: eins\n\nassistant: one two\n\nuser: zwei"
    other = api.other_tenant().call("POST", "/v1/responses", json=RESPONSE | {"input": [*references, following]})
    assert (other.status_code, other.json["error"]["param"]) == (400, "input")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/openai/deployments/words/chat/completions?api-version=2025-01-01", CHAT),
        ("/openai/responses?api-version=preview", RESPONSE),
        ("/openai/v1/responses", RESPONSE),
    ],
)
def test_azures_addresses_and_its_header_for_keys_are_understood(api: Api, path: str, body: dict[str, Any]) -> None:
    with answering(api):
        answer = api.client.post(path, json=body, headers={"api-key": api.key})
        assert answer.status_code == 200
        assert api.client.post(path, json=body, headers={"api-key": "wrong"}).status_code == 401
        assert api.client.post(path, json=body).status_code == 401
    listed = api.call("GET", "/openai/v1/responses?limit=1&api-version=v1")
    assert len(listed.json["data"]) == 1


def test_an_answer_can_be_sent_back_as_it_came(api: Api) -> None:
    with answering(api, "one"):
        chat = api.call("POST", "/v1/chat/completions", json=CHAT).json
        history = [*CHAT["messages"], chat["choices"][0]["message"], {"role": "user", "content": "zwei"}]
        assert api.call("POST", "/v1/chat/completions", json=CHAT | {"messages": history}).status_code == 200
        response = api.call("POST", "/v1/responses", json=RESPONSE).json
        items = [{"role": "user", "content": "eins"}, *response["output"], {"role": "user", "content": "zwei"}]
        assert api.call("POST", "/v1/responses", json=RESPONSE | {"input": items}).status_code == 200
    assert isinstance(response["created_at"], int)


def test_a_retrieval_names_what_it_includes(api: Api) -> None:
    stored = api.submit()
    path = f"/v1/responses/{stored['id']}?include[]=message.output_text.logprobs"
    assert api.call("GET", path).status_code == 200
    assert api.call("GET", f"/v1/responses/{stored['id']}?include[]=other").status_code == 400


def test_a_prompt_is_encoded_and_decoded_as_a_completion_reads_it(api: Api) -> None:
    encoded = api.call("POST", "/tokenize", json={"model": "words", "prompt": "a b", "return_token_strs": True}).json
    assert encoded == {"count": 2, "max_model_len": 114, "tokens": [0, 0], "token_strs": ["[UNK]", "[UNK]"]}
    assert api.call("POST", "/detokenize/", json={"tokens": [0, 0]}).json == {"prompt": "[UNK] [UNK]"}
    chat = api.call("POST", "/tokenize", json={"messages": CHAT["messages"]}).json
    assert chat["tokens"] == [0]
    assert chat["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"prompt": "a", "messages": CHAT["messages"]}, "messages"),
        ("/tokenize", {"prompt": "a " * 60}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "a", "model": "gpt"}, "model"),
        ("/detokenize", {"tokens": [1]}, "tokens"),
        ("/detokenize", {"tokens": [0] * 115}, "tokens"),  # a prompt of 50 and an answer of 64 are the most
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
)
def test_what_cannot_be_encoded_or_decoded_is_named(
    refusing_api: Api, path: str, body: dict[str, Any], param: str
) -> None:
    answer = refusing_api.call("POST", path, json=body)
    assert 400 <= answer.status_code < 500
    assert answer.json["error"]["param"] == param


def test_a_compressed_body_is_read(api: Api) -> None:
    body = gzip.compress(b'{"model": "words", "prompt": "a b"}')
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    assert api.call("POST", "/tokenize", data=body, headers=headers).json["count"] == 2


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (gzip.compress(b" " * 10_000_000), "gzip", 413),  # the bound is 100,000 bytes
        (gzip.compress(b'{"prompt": "a"}', mtime=0)[:-12], "gzip", 400),  # the lanes of pytest compare names: no time
        (b"no gzip", "gzip", 400),
        (b"", "gzip", 400),
        (zlib.compress(b'{"prompt": "a"}'), "deflate", 400),
        (b'{"prompt": "a"}', "br", 400),
    ],
)
def test_a_compressed_body_that_is_none_or_unfolds_to_too_much_is_refused(
    refusing_api: Api, body: bytes, encoding: str, status: int
) -> None:
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    assert refusing_api.call("POST", "/tokenize", data=body, headers=headers).status_code == status


ORIGIN = {"Origin": "https://app.example"}
PREFLIGHT = ORIGIN | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


def test_pages_of_named_origins_may_use_the_api_and_others_may_not(web_settings: Settings) -> None:
    settings = web_settings.model_copy(update={"cors_origins": "https://app.example, https://other.example/"})
    for api in running_api(settings):
        preflight = api.client.options("/v1/responses", headers=PREFLIGHT)
        assert (preflight.status_code, preflight.headers["Access-Control-Allow-Origin"]) == (204, ORIGIN["Origin"])
        assert "Authorization" in preflight.headers["Access-Control-Allow-Headers"]
        answer = api.call("GET", "/v1/models", headers=ORIGIN)
        assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN["Origin"]
        assert "x-request-id" in answer.headers["Access-Control-Expose-Headers"]
        refused = api.client.get("/v1/models", headers=ORIGIN)  # also errors can be read
        assert (refused.status_code, refused.headers["Access-Control-Allow-Origin"]) == (401, ORIGIN["Origin"])
        elsewhere = api.call("GET", "/v1/models", headers={"Origin": "https://evil.example"})
        assert "Access-Control-Allow-Origin" not in elsewhere.headers
        page = api.client.get("/healthz", headers=ORIGIN)
        assert "Access-Control-Allow-Origin" not in page.headers


def test_without_the_setting_no_other_origin_may(api: Api) -> None:
    assert "Access-Control-Allow-Origin" not in api.call("GET", "/v1/models", headers=ORIGIN).headers
    assert api.client.options("/v1/responses", headers=PREFLIGHT).status_code == 401


def test_the_reference_page_shows_every_call_and_loads_nothing_from_elsewhere(api: Api) -> None:
    page = api.client.get("/docs")
    text = page.get_data(as_text=True)
    assert page.status_code == 200
    for path, operations in api.client.get("/openapi.json").get_json()["paths"].items():
        for method in operations:
            assert f"{method.upper()} {path}" in text
    assert "<script" not in text
    assert "//" not in text.replace('xmlns="http://www.w3.org', "").partition("<main")[0]


@pytest.mark.parametrize(
    ("method", "path", "instead"),
    [
        ("GET", "/v1/webhook_endpoints", "/v1/magnus/webhooks"),
        ("DELETE", "/v1/webhook_endpoints/we_1", "/v1/magnus/webhooks"),
        ("POST", "/v1/responses/compact", "truncation"),
        ("POST", "/v2/embed", "/v1/embeddings"),
    ],
)
def test_an_address_of_another_service_says_what_to_use_here(api: Api, method: str, path: str, instead: str) -> None:
    answer = api.call(method, path, json={})
    assert (answer.status_code, answer.json["error"]["code"]) == (404, "not_found")
    assert instead in answer.json["error"]["message"]
    assert api.call("GET", "/v1/embeddings").status_code == 405


def test_probes_of_other_servers_are_answered(api: Api) -> None:
    assert api.client.get("/ping").json == {"status": "ok"}
    assert api.client.get("/version").json == {"version": VERSION}
