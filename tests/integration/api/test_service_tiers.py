"""The service tiers of OpenAI's API: which one a call asks for, which one serves it, and a tenant's quota."""

import json
from typing import Any, Literal

import pytest
from openai import OpenAI

from models.connections.session import make_sessions
from models.tenants import tenant_limits
from settings import Settings
from tests.integration.answering_worker import answering, events
from tests.integration.api_service import MODEL, Api
from tests.integration.bulk_stage import BulkStage, chat_line, create, upload
from webapp.app import create_app

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "eins"}]}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", {"model": MODEL, "prompt": "eins"}),
    ("/v1/responses", {"model": MODEL, "input": "eins"}),
]
Asked = Literal["auto", "default", "flex", "priority"]
TIERS: list[tuple[Asked | None, str]] = [
    (None, "default"),
    ("auto", "default"),
    ("default", "default"),
    ("flex", "flex"),
    ("priority", "priority"),
]


def allow(api: Api, priority_requests: int) -> None:
    """Sets the quota of the tenant `acme` as `magnus tenant set` does."""
    with make_sessions(api.engine).begin() as session:
        tenant_limits.change_tenant(session, "acme", {"priority_requests": priority_requests})


def test_every_call_is_served_by_the_tier_that_it_asks_for_and_says_so(api: Api) -> None:
    with answering(api):
        for path, body in CALLS:
            for asked, served in TIERS:
                answer = api.call("POST", path, json=body | {"service_tier": asked, "magnus": {"priority": 7}})
                assert (answer.status_code, answer.json["service_tier"]) == (200, served), (path, asked)
    stored = api.sql("select tier, priority from requests order by arrived_at")
    assert stored == [(tier, 7) for _, tier in TIERS] * len(CALLS)


def test_the_official_client_reads_the_tier_of_answers_and_of_chunks(api: Api, client: OpenAI) -> None:
    with answering(api):
        chat = client.chat.completions.create(**CHAT, service_tier="priority")
        chunks = list(client.chat.completions.create(**CHAT, service_tier="flex", stream=True))
        response = client.responses.create(model=MODEL, input="eins", service_tier="flex")
    assert (chat.service_tier, response.service_tier) == ("priority", "flex")
    assert {chunk.service_tier for chunk in chunks} == {"flex"}


@pytest.mark.parametrize(("path", "body"), CALLS)
@pytest.mark.parametrize("tier", ["scale", "fast", "", "FLEX", 1, ["flex"]])
def test_a_tier_that_there_is_not_is_refused(refusing_api: Api, path: str, body: dict[str, Any], tier: object) -> None:
    answer = refusing_api.call("POST", path, json=body | {"service_tier": tier})
    assert (answer.status_code, answer.json["error"]["param"]) == (400, "service_tier")


def test_beyond_its_quota_a_tenants_requests_are_served_as_default_until_others_end(api: Api) -> None:
    allow(api, 2)
    tiers = [api.submit(service_tier="priority")["service_tier"] for _ in range(3)]
    assert tiers == ["priority", "priority", "default"]
    assert api.other_tenant().submit(service_tier="priority")["service_tier"] == "priority"
    api.sql("update requests set status = 'failed', finished_at = clock_timestamp() where tenant = 'acme'")
    assert api.submit(service_tier="priority")["service_tier"] == "priority"
    allow(api, 0)
    assert api.submit(service_tier="priority")["service_tier"] == "default"


def test_a_repeated_call_keeps_its_tier_and_every_chunk_of_a_stream_has_it(api: Api) -> None:
    allow(api, 2)  # one for the repeated call and one for the stream
    key = {"Idempotency-Key": "once"}
    body = {"model": MODEL, "input": "eins", "background": True, "service_tier": "priority"}
    assert [api.call("POST", "/v1/responses", json=body, headers=key).json["service_tier"] for _ in range(3)] == [
        "priority"
    ] * 3
    with answering(api):
        streamed = api.call("POST", "/v1/chat/completions", json=CHAT | {"service_tier": "priority", "stream": True})
        tiers = {event["service_tier"] for event in events(streamed)}
    assert tiers == {"priority"}


def test_without_off_peak_hours_their_tier_is_refused(refusing_api: Api) -> None:
    for path, body in CALLS:
        answer = refusing_api.call("POST", path, json=body | {"service_tier": "off_peak"})
        assert (answer.status_code, answer.json["error"]["param"]) == (400, "service_tier")
        assert "MAGNUS_OFF_PEAK" in answer.json["error"]["message"]
    batch = {"input_file_id": "file_1", "endpoint": "/v1/responses", "completion_window": "24h"}
    answer = refusing_api.call("POST", "/v1/batches", json=batch | {"magnus": {"service_tier": "off_peak"}})
    assert "MAGNUS_OFF_PEAK" in answer.json["error"]["message"]


def test_calls_and_batches_may_be_off_peak_work(
    client: OpenAI, bulk: BulkStage, web_settings: Settings, api: Api
) -> None:
    app = create_app(web_settings.model_copy(update={"off_peak": "22:00-06:00 Europe/Berlin"}))
    nightly = Api(app.test_client(), api.engine, api.key)
    assert nightly.submit(service_tier="off_peak")["service_tier"] == "off_peak"
    file = upload(client, [chat_line("a"), chat_line("b")])
    asked = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = nightly.call("POST", "/v1/batches", json=asked | {"magnus": {"service_tier": "off_peak"}}).json
    app.extensions["magnus"].close()
    assert batch["magnus"]["service_tier"] == "off_peak"
    bulk.feed()
    assert api.sql("select tier, count(*) from requests group by 1") == [("off_peak", 3)]


def test_a_line_of_a_batch_is_flex_and_cannot_be_ahead_of_others(client: OpenAI, bulk: BulkStage) -> None:
    asked = ("auto", "default", "flex", "priority")
    batch = create(client, [chat_line(tier, service_tier=tier) for tier in asked])
    bulk.finish()
    batch = client.batches.retrieve(batch.id)
    output, errors = (
        [json.loads(line) for line in client.files.content(file_id or "").iter_lines()]
        for file_id in (batch.output_file_id, batch.error_file_id)
    )
    assert {one["custom_id"]: one["response"]["body"]["service_tier"] for one in output} == dict.fromkeys(
        asked[:3], "flex"
    )
    (refused,) = errors
    assert refused["custom_id"] == "priority"
    assert refused["response"]["body"]["error"]["param"] == "service_tier"
    assert bulk.api.sql("select distinct tier, priority from requests") == [("flex", 0)]
