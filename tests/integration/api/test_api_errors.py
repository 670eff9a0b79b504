"""Bad input gets OpenAI's error shape with the right 4xx and the field's name, and none of it reaches the database."""

import json
from contextlib import ExitStack
from threading import Event
from typing import Any

import pytest
from sqlalchemy import make_url

from settings import Settings
from tests.integration.api_service import Api
from tests.integration.database_stage import Stage
from webapp.app import CONNECTIONS, KEYS_TTL_S, create_app
from webapp.routes.monitoring import POOL_HELD_S

VALID = {"model": "words", "input": "eins", "background": True}


def user(content: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": content}]


FIELDS: dict[str, tuple[dict[str, Any], int, str]] = {
    "no model": ({"model": None}, 400, "model"),
    "unknown model": ({"model": "gpt-9"}, 404, "model"),
    "model with NUL": ({"model": "a\0"}, 400, "model"),
    "no input": ({"input": None}, 400, "input"),
    "empty input": ({"input": ""}, 400, "input"),
    "blank input": ({"input": " \n"}, 400, "input"),
    "numeric input": ({"input": 5}, 400, "input"),
    "object as input": ({"input": {}}, 400, "input"),
    "empty list": ({"input": []}, 400, "input"),
    "item that is text": ({"input": ["a"]}, 400, "input[0]"),
    "unknown role": ({"input": [{"role": "tool", "content": "a"}]}, 400, "input[0].role"),
    "no user at all": ({"input": [{"role": "assistant", "content": "a"}]}, 400, "input"),
    "blank message": ({"input": user(" ")}, 400, "input"),
    "no content": ({"input": [{"role": "user"}]}, 400, "input[0].content"),
    "image": ({"input": user([{"type": "input_image", "image_url": "x"}])}, 400, "input[0].content[0].type"),
    "NUL in a part": ({"input": user([{"type": "input_text", "text": "a\0"}])}, 400, "input[0].content[0].text"),
    "over-long input": ({"input": "eins " * 51}, 400, "input"),
    "very long input": ({"input": "e" * 60_000}, 400, "input"),
    "NUL in input": ({"input": "a\0b"}, 400, "input"),
    "instructions as list": ({"instructions": ["a"]}, 400, "instructions"),
    "NUL in instructions": ({"instructions": "\0"}, 400, "instructions"),
    "limit of zero": ({"max_output_tokens": 0}, 400, "max_output_tokens"),
    "limit above the bound": ({"max_output_tokens": 65}, 400, "max_output_tokens"),
    "limit above every integer": ({"max_output_tokens": 10**30}, 400, "max_output_tokens"),
    "fractional limit": ({"max_output_tokens": 1.5}, 400, "max_output_tokens"),
    "limit as text": ({"max_output_tokens": "5"}, 400, "max_output_tokens"),
    "boolean limit": ({"max_output_tokens": True}, 400, "max_output_tokens"),
    "metadata as list": ({"metadata": ["a"]}, 400, "metadata"),
    "numeric metadata": ({"metadata": {"a": 1}}, 400, "metadata.a"),
    "NUL in metadata": ({"metadata": {"a": "\0"}}, 400, "metadata.a"),
    "NUL in a metadata key": ({"metadata": {"\0": "a"}}, 400, "metadata.\0"),
    "too much metadata": ({"metadata": {str(n): "a" for n in range(17)}}, 400, "metadata"),
    "too long a value": ({"metadata": {"a": "x" * 513}}, 400, "metadata.a"),
    "background as text": ({"background": "yes"}, 400, "background"),
    "hot": ({"temperature": 2.1}, 400, "temperature"),
    "no nucleus": ({"top_p": 0}, 400, "top_p"),
    "streaming": ({"stream": 1}, 400, "stream"),
    "tools": ({"tools": [{"type": "teleport"}]}, 400, "tools[0]"),
    "not stored": ({"store": False}, 400, "store"),
    "earlier response": ({"previous_response_id": "resp_1"}, 400, "previous_response_id"),
    "unknown output": ({"text": {"format": {"type": "xml"}}}, 400, "text.format"),
    "misspelt": ({"max_ouput_tokens": 5}, 400, "max_ouput_tokens"),
    "misspelt extra": ({"magnus": {"prio": 5}}, 400, "magnus.prio"),
    "priority": ({"magnus": {"priority": 101}}, 400, "magnus.priority"),
    "past deadline": ({"magnus": {"deadline_s": -1}}, 400, "magnus.deadline_s"),
    "infinite deadline": ({"magnus": {"deadline_s": 1e300}}, 400, "magnus.deadline_s"),
    "negative seed": ({"magnus": {"seed": -1}}, 400, "magnus.seed"),
    "NUL in a stop": ({"magnus": {"stop": ["a\0"]}}, 400, "magnus.stop[0]"),
    "seed above 63 bits": ({"magnus": {"seed": 2**63}}, 400, "magnus.seed"),
    "colder than zero": ({"temperature": -1e-38}, 400, "temperature"),
    "hot beyond floats": ({"temperature": 1e308}, 400, "temperature"),
    "empty stop": ({"magnus": {"stop": [""]}}, 400, "magnus.stop[0]"),
    "many stops": ({"magnus": {"stop": ["a"] * 5}}, 400, "magnus.stop"),
}


@pytest.mark.parametrize(("fields", "status", "param"), FIELDS.values(), ids=FIELDS)
def test_a_bad_field_is_named(refusing_api: Api, fields: dict[str, Any], status: int, param: str) -> None:
    body = {name: value for name, value in (VALID | fields).items() if value is not None}
    answer = refusing_api.call("POST", "/v1/responses", json=body)
    assert (answer.status_code, answer.json["error"]["param"]) == (status, param)
    assert_both_shapes(answer.json, status)
    assert refusing_api.sql("select count(*) from requests")[0][0] == 0


BODIES: dict[str, tuple[bytes, int]] = {
    "nothing": (b"", 400),
    "cut off": (b'{"model": "wor', 400),
    "a list": (b"[]", 400),
    "a text": (b'"model"', 400),
    "null": (b"null", 400),
    "a million brackets": (b"[" * 90_000, 400),
    "deep objects": (b'{"input":' * 9_000 + b"1" + b"}" * 9_000, 400),
    "deep but well-formed metadata": (b'{"metadata":' + b"[" * 150 + b"]" * 150 + b"}", 400),
    "lone surrogate": (rb'{"model": "words", "input": "\ud800", "background": true}', 400),
    "surrogates in the wrong order": (rb'{"model": "words", "input": "\udc00\ud800", "background": true}', 400),
    "surrogate in UTF-8": (b'{"model": "words", "input": "\xed\xa0\x80"}', 400),
    "Latin-1": (b'{"model": "words", "input": "\xe9"}', 400),
    "UTF-16": ('{"model": "words"}'.encode("utf-16"), 400),
    "surrogate in a stop": (rb'{"model": "words", "input": "a", "magnus": {"stop": ["\ud800"]}}', 400),
    "infinite temperature": (rb'{"model": "words", "input": "a", "temperature": 1e999}', 400),
    "NUL byte": (b'{"model": "words", "input": "a\x00"}', 400),
    "escaped NUL": (rb'{"model": "words", "input": "a\u0000"}', 400),
    "NaN": (b'{"model": "words", "input": "a", "temperature": NaN}', 400),
    "infinity by overflow": (b'{"model": "words", "input": "a", "temperature": 1e999}', 400),
    "an endless number": (b'{"model": "words", "input": "a", "max_output_tokens": ' + b"9" * 5_000 + b"}", 400),
    "an endless unknown field": (b'{"model": "words", "input": "a", "' + b"x" * 50_000 + b'": 1}', 400),
    "too large": (b'{"input": "' + b"x" * 100_000 + b'"}', 413),
}


@pytest.mark.parametrize(("body", "status"), BODIES.values(), ids=BODIES)
def test_an_unreadable_body_is_the_clients_error(refusing_api: Api, body: bytes, status: int) -> None:
    answer = refusing_api.call("POST", "/v1/responses", data=body, content_type="application/json")
    assert answer.status_code == status
    assert_both_shapes(answer.json, status)
    assert len(answer.data) < 1_000
    assert refusing_api.sql("select count(*) from requests")[0][0] == 0


@pytest.mark.parametrize(
    ("path", "status", "param"),
    [
        ("/v1/responses?limit=0", 400, "limit"),
        ("/v1/responses?limit=101", 400, "limit"),
        ("/v1/responses?limit=many", 400, "limit"),
        ("/v1/responses?after=resp_0", 400, "after"),
        ("/v1/responses?application=%00", 400, "application"),
        ("/v1/responses?colour=red", 400, "colour"),
        ("/v1/responses/%00", 404, "id"),
        ("/v1/responses/%ff", 404, "id"),
        (f"/v1/responses/resp_{'0' * 32}", 404, "id"),
        ("/v1/models/gpt-9", 404, "model"),
        ("/v1/nothing", 404, None),
    ],
)
def test_a_bad_address_or_query_is_refused(refusing_api: Api, path: str, status: int, param: str | None) -> None:
    answer = refusing_api.call("GET", path)
    assert (answer.status_code, answer.json["error"]["param"]) == (status, param)
    assert_both_shapes(answer.json, status)


def test_a_wrong_method_says_which_are_right(refusing_api: Api) -> None:
    answer = refusing_api.call("PUT", "/v1/responses")
    assert answer.status_code == 405
    assert "POST" in answer.headers["Allow"]
    assert_both_shapes(answer.json, 405)


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic bWFnbnVzOng=", "Bearer magnus-unknown", "Bearer \xff"]
)
def test_without_a_valid_key_nothing_is_answered(refusing_api: Api, header: str) -> None:
    for method, path in [("GET", "/v1/models"), ("POST", "/v1/responses"), ("GET", "/v1/nothing")]:
        answer = refusing_api.client.open(path, method=method, headers={"Authorization": header})
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert_both_shapes(answer.get_json(), 401)


def test_a_revoked_key_is_refused_within_the_time_that_the_page_on_security_says(api: Api) -> None:
    assert api.call("GET", "/v1/models").status_code == 200
    api.sql("update api_keys set revoked_at = clock_timestamp()")
    Event().wait(KEYS_TTL_S)
    assert api.call("GET", "/v1/models").status_code == 401


def test_a_key_that_was_unknown_is_accepted_as_soon_as_it_is_stored(api: Api) -> None:
    newcomer = api.with_key()
    api.sql("update api_keys set expires_at = clock_timestamp() where name = 'other'")
    assert newcomer.call("GET", "/v1/models").status_code == 401
    api.sql("update api_keys set expires_at = null")
    assert newcomer.call("GET", "/v1/models").status_code == 200


@pytest.mark.parametrize("key", ["", "x" * 256, "caf\xe9", "a\x7f"])
def test_an_idempotency_key_is_short_plain_text(refusing_api: Api, key: str) -> None:
    answer = refusing_api.call("POST", "/v1/responses", json=VALID, headers={"Idempotency-Key": key})
    assert (answer.status_code, answer.json["error"]["param"]) == (400, "Idempotency-Key")


def test_a_key_that_sends_too_much_is_told_when_to_come_back(web_settings: Settings, api: Api) -> None:
    app = create_app(web_settings.model_copy(update={"rate_limit": "2/minute"}))
    hurried = Api(app.test_client(), api.engine, api.key)
    assert [hurried.call("GET", "/v1/models").status_code for _ in range(3)] == [200, 200, 429]
    answer = hurried.call("GET", "/v1/models")
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    assert_both_shapes(answer.json, 429)
    patient = Api(hurried.client, api.engine, api.other_tenant().key)
    assert patient.call("GET", "/v1/models").status_code == 200
    app.extensions["magnus"].close()


def test_a_key_of_a_tenant_that_is_removed_is_unknown_at_once(web_settings: Settings, api: Api) -> None:
    app = create_app(web_settings.model_copy(update={"rate_limit": "100/minute"}))  # near which each call is counted
    removed = Api(app.test_client(), api.engine, api.key)
    assert removed.call("GET", "/v1/models").status_code == 200
    api.sql("delete from rate_counts")
    api.sql("delete from api_keys")
    assert removed.call("GET", "/v1/models").status_code == 401  # the process has read the key less than a second ago
    app.extensions["magnus"].close()


def test_without_a_database_the_service_says_so_and_asks_for_patience(web_settings: Settings) -> None:
    app = create_app(web_settings.model_copy(update={"database_url": "postgresql://localhost:9/none"}))
    client = app.test_client()
    answer = client.get("/v1/models", headers={"Authorization": "Bearer magnus-x"})
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "2"
    assert_both_shapes(answer.get_json(), 503)
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 200


def test_a_database_that_takes_no_writes_is_named_and_requests_are_asked_to_come_back(
    web_settings: Settings, api: Api
) -> None:
    url = make_url(web_settings.database_url or "").update_query_dict({"options": "-cdefault_transaction_read_only=on"})
    app = create_app(web_settings.model_copy(update={"database_url": url.render_as_string(hide_password=False)}))
    standby = Api(app.test_client(), api.engine, api.key)
    answer = standby.call("POST", "/v1/responses", json=VALID)
    assert (answer.status_code, answer.json["error"]["code"]) == (503, "database_unavailable")
    assert_both_shapes(answer.json, 503)
    ready = standby.call("GET", "/readyz")
    assert ready.status_code == 503
    assert "the primary's address" in ready.json["reason"]
    told = standby.call("GET", "/v1/magnus/stats")  # counting a call against its limit is a write
    assert (told.status_code, "takes no writes" in told.json["error"]["message"]) == (503, True)
    assert standby.client.get("/metrics").status_code == 503  # so that MagnusUnreachable goes off
    app.extensions["magnus"].close()


@pytest.mark.parametrize(
    ("path", "unfit"),
    [
        ("/v1/magnus/stats", "alter table process_heartbeats drop column failure"),
        ("/v1/magnus/usage", "drop table usage_days"),
    ],
    ids=["a column is missing", "a table is missing"],
)
def test_a_schema_that_does_not_fit_is_no_mistake_of_ours_and_has_a_remedy(api: Api, path: str, unfit: str) -> None:
    api.sql(unfit)
    answer = api.call("GET", path)
    assert (answer.status_code, answer.json["error"]["code"]) == (503, "database_unavailable")
    assert "`magnus migrate`" in answer.json["error"]["message"]


def assert_both_shapes(body: dict[str, Any], status: int) -> None:
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] == body["detail"]
    assert body["status"] == status
    assert body["title"]
    assert json.dumps(body).isascii()


def test_a_model_that_has_had_no_worker_for_an_hour_takes_no_requests(api: Api) -> None:
    told = {"version": 3, "models": {"words": {"unserved": 400, "unserved_s": 4000.0}}}
    Stage(api.engine).sql(
        "insert into service_state (name, value) values ('planner', cast(:told as jsonb))", told=json.dumps(told)
    )
    for path, body in (
        ("/v1/responses", VALID),
        ("/v1/chat/completions", {"model": "words", "messages": user("eins")}),
        ("/v1/completions", {"model": "words", "prompt": ["eins", "zwei"]}),
    ):
        answer = api.call("POST", path, json=body)
        assert (answer.status_code, answer.json["error"]["code"]) == (503, "model_unserved"), path
        assert "no worker" in answer.json["error"]["message"].lower()
        assert answer.headers["Retry-After"] == "60"
    assert Stage(api.engine).requests("status") == {}


def test_a_process_whose_calls_hold_all_connections_for_a_minute_is_not_healthy(api: Api) -> None:
    context = api.client.application.extensions["magnus"]
    with ExitStack() as held:
        for _ in range(CONNECTIONS):
            held.enter_context(context.database.connect())
        assert api.client.get("/healthz").status_code == 200
        context.pool_watch._given_at -= POOL_HELD_S + 1
        assert api.client.get("/healthz").status_code == 503
    assert api.client.get("/healthz").status_code == 200
