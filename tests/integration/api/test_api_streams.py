"""Streams of the API with a real database and a real broker; the test takes the worker's place."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from models.connections.installation import read_installation
from protocol.streaming.token_messages import asks_channel, decode_asks, encode_pieces, pieces_channel
from settings import Settings
from tests.integration.api.answer_streams import CHAT, MESSAGE, PROMPT, RESPONSE, Event, Stream, end, post
from tests.integration.api_service import Api
from tests.integration.database_stage import eventually
from webapp.app import create_app


def test_without_a_broker_a_chat_streams_its_answer_at_the_end(api: Api) -> None:
    events = iter(post(api, "/v1/chat/completions", CHAT | {"stream_options": {"include_usage": True}}))
    first = next(events)
    assert (first["object"], first["choices"][0]["delta"]) == (
        "chat.completion.chunk",
        {"role": "assistant", "content": ""},
    )
    end(api, "one two")
    text, last, usage = events
    assert text["choices"][0]["delta"] == {"content": "one two"}
    assert (last["choices"][0]["finish_reason"], last["magnus"]["tokens_so_far"]) == ("stop", 2)
    assert (usage["choices"], usage["usage"]["completion_tokens"], text["usage"]) == ([], 2, None)


def entry(token: bytes) -> dict[str, Any]:
    likely = {"token": token.decode(errors="replace"), "logprob": -1.0, "bytes": list(token)}
    return likely | {"top_logprobs": [likely]}


FOX = [b"a", b" \xf0\x9f", b"\xa6\x8a", b"z", b""]  # 🦊 takes two tokens, and the last token has no text


def test_a_stream_has_each_tokens_log_probability_beside_its_text(api: Api) -> None:
    entries = [entry(token) for token in FOX]
    asked = CHAT | {"logprobs": True, "top_logprobs": 1}
    first, *parts, last = _ended(api, "/v1/chat/completions", asked, "a \U0001f98az", entries)
    shown = [(one["choices"][0]["delta"]["content"], one["choices"][0]["logprobs"]["content"]) for one in parts]
    assert [text for text, _ in shown if text] == ["a", " ", "\U0001f98a", "z"]
    assert [one for _, of_piece in shown for one in of_piece] == entries
    assert first["choices"][0]["logprobs"] is last["choices"][0]["logprobs"] is None

    echoed = PROMPT | {"logprobs": 0, "echo": True}
    *parts, last = _ended(api, "/v1/completions", echoed, "a b", [entry(b"eins"), entry(b"a"), entry(b" b")])
    choices = [one["choices"][0] for one in parts]
    assert [choice["text"] for choice in choices] == ["eins", "a", " b"]
    assert [choice["logprobs"]["text_offset"] for choice in choices] == [[0], [4], [5]]
    assert [choice["logprobs"]["token_logprobs"] for choice in choices] == [[None], [-1.0], [-1.0]]

    included = RESPONSE | {"include": ["message.output_text.logprobs"]}
    events = _ended(api, "/v1/responses", included, "a b", [entry(b"a"), entry(b" b")])
    deltas = [one for one in events if one["type"] == "response.output_text.delta"]
    assert [(one["delta"], one["logprobs"]) for one in deltas] == [("a", [entry(b"a")]), (" b", [entry(b" b")])]
    [done] = [one for one in events if one["type"] == "response.output_text.done"]
    assert done["logprobs"] == [entry(b"a"), entry(b" b")]


def _ended(api: Api, path: str, body: dict[str, Any], text: str, logprobs: list[Any]) -> list[Event]:
    api.sql("delete from requests")
    stream = post(api, path, body)
    end(api, text, logprobs=json.dumps(logprobs))
    return list(stream)


def test_a_stream_that_fails_ends_with_an_error(api: Api) -> None:
    stream = post(api, "/v1/completions", PROMPT)
    end(api, None, status="failed", error='{"code": "out_of_memory", "message": "Too long."}')
    (error,) = stream
    assert (error["error"]["code"], error["error"]["type"]) == ("out_of_memory", "server_error")


def test_a_cancelled_response_ends_its_stream(api: Api) -> None:
    events = iter(post(api, "/v1/responses", RESPONSE))
    created = next(events)
    assert (created["type"], created["response"]["status"]) == ("response.created", "queued")
    api.call("POST", f"/v1/responses/{created['response']['id']}/cancel")
    (last,) = events
    assert (last["type"], last["response"]["status"]) == ("response.failed", "cancelled")


def test_a_deleted_response_ends_its_stream(api: Api) -> None:
    events = iter(post(api, "/v1/responses", RESPONSE))
    api.call("DELETE", f"/v1/responses/{next(events)['response']['id']}")
    (last,) = events
    assert (last["type"], last["code"]) == ("error", "response_not_found")


def test_an_answer_that_was_there_before_is_streamed_at_once(api: Api) -> None:
    created = api.submit()
    end(api, "one two")
    stream = Stream(api, "GET", f"/v1/responses/{created['id']}?stream=true")
    assert [event["type"] for event in stream] == [
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


@pytest.mark.parametrize("after", [0, 3, 4, 5, 9, 11, 12, 14, 15, 400])
def test_a_stream_goes_on_behind_any_event(api: Api, after: int) -> None:
    created = api.submit()
    end(api, "one two")
    path = f"/v1/responses/{created['id']}?stream=true"
    whole, rest = list(Stream(api, "GET", path)), list(Stream(api, "GET", f"{path}&starting_after={after}"))
    assert [event for event in rest if "delta" not in event] == [
        event for event in whole if event["sequence_number"] > after and "delta" not in event
    ]
    assert "".join(event.get("delta", "") for event in rest) == "one two"[max(0, after - 4) :]


def test_another_tenants_stream_is_not_found(api: Api) -> None:
    created = api.submit()
    answer = api.other_tenant().call("GET", f"/v1/responses/{created['id']}?stream=true")
    assert answer.status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "param"),
    [
        ("POST", "/v1/chat/completions", CHAT | {"stream": False, "stream_options": {}}, "stream_options"),
        ("POST", "/v1/chat/completions", CHAT | {"stream_options": {"more": 1}}, "stream_options.more"),
        ("POST", "/v1/completions", PROMPT | {"stream": "yes"}, "stream"),
        ("GET", f"/v1/responses/resp_{0:032x}?starting_after=1", None, "starting_after"),
        ("GET", f"/v1/responses/resp_{0:032x}?stream=true&starting_after=-1", None, "starting_after"),
        ("GET", f"/v1/responses/resp_{0:032x}?more=1", None, "more"),
    ],
)
def test_what_a_stream_cannot_do_is_refused_by_name(
    refusing_api: Api, method: str, path: str, body: dict[str, Any] | None, param: str
) -> None:
    answer = refusing_api.call(method, path, json=body)
    assert (answer.status_code, answer.json["error"]["param"]) == (400, param)


def test_what_is_sampled_and_streamed_has_a_seed_so_that_a_lost_worker_changes_nothing(api: Api) -> None:
    streams = [post(api, "/v1/chat/completions", CHAT | {"temperature": 1.0}) for _ in range(2)]
    seeds = {row.body["sampling"]["seed"] for row in api.sql("select body from requests")}
    assert len(seeds) == 2
    assert None not in seeds
    for stream in streams:
        stream.close()
    assert {row.status for row in api.sql("select status from requests")} == {"cancelled"}


class Worker:
    """Publishes pieces of answers, and receives the ids of the requests whose pieces are wanted."""

    def __init__(self, client: redis.Redis, api: Api) -> None:
        with api.engine.connect() as connection:
            self._installation = read_installation(connection)
        self._client, self.channel = client, pieces_channel(self._installation.name)
        self._asks = client.pubsub(ignore_subscribe_messages=True)
        self._asks.subscribe(asks_channel(self._installation.name))
        self._api = api

    def publish(self, start: int, text: str, id: str | None = None) -> None:
        """Publishes a piece of this request's answer, or of the only request's, once the web process listens."""
        eventually(lambda: self._client.pubsub_numsub(self.channel)[0][1])
        request_id = id or self._api.sql("select id from requests")[0].id
        self._client.publish(self.channel, encode_pieces([("resp_other", 0, "secret"), (request_id, start, text)]))

    def asked_for(self) -> list[str]:
        """Returns the request ids of the web process's next message."""
        message = eventually(lambda: self._asks.get_message(timeout=1.0))
        return decode_asks(message["data"], self._installation.secret)

    def close(self) -> None:
        self._asks.close()


@pytest.fixture
def streaming(web_settings: Settings, api: Api, redis_url: str) -> Iterator[Api]:
    """The API, connected to a broker."""
    app = create_app(web_settings.model_copy(update={"redis_url": redis_url}))
    yield Api(app.test_client(), api.engine, api.key)
    app.extensions["magnus"].close()


@pytest.fixture
def worker(streaming: Api, redis_url: str) -> Iterator[Worker]:
    with redis.Redis.from_url(redis_url) as client:
        worker = Worker(client, streaming)
        yield worker
        worker.close()


def texts(events: Iterator[Event]) -> Iterator[str]:
    return (event["delta"] for event in events if event["type"] == "response.output_text.delta")


def test_pieces_come_as_they_are_published_and_the_rest_from_the_stored_answer(streaming: Api, worker: Worker) -> None:
    pieces = texts(iter(post(streaming, "/v1/responses", RESPONSE)))
    worker.publish(0, "one")
    assert next(pieces) == "one"
    worker.publish(3, " two")
    assert next(pieces) == " two"
    end(streaming, "one two three")
    assert list(pieces) == [" three"]


def test_several_answers_come_beside_each_other_as_they_are_generated(streaming: Api, worker: Worker) -> None:
    events = iter(post(streaming, "/v1/chat/completions", CHAT | {"n": 2}))
    assert [next(events)["choices"][0]["index"] for _ in range(2)] == [0, 1]
    ids = [row.id for row in streaming.sql("select id from requests order by arrived_at, id")]
    for start, text in enumerate("abc"):
        for place in (1, 0):
            worker.publish(start, text, ids[place])
            choice = next(events)["choices"][0]
            assert (choice["index"], choice["delta"]) == (place, {"content": text})
    end(streaming, "abc")
    assert sorted(event["choices"][0]["index"] for event in events) == [0, 1]


def test_what_was_missed_is_asked_for_and_nothing_comes_twice(streaming: Api, worker: Worker) -> None:
    stream = post(streaming, "/v1/responses", RESPONSE)
    pieces = texts(iter(stream))
    worker.publish(3, " two")
    ((request_id,),) = streaming.sql("select id from requests")
    while worker.asked_for() != [request_id]:
        pass
    worker.publish(0, "one two")
    assert next(pieces) == "one two"
    worker.publish(0, "one two")
    worker.publish(7, " three")
    assert next(pieces) == " three"
    stream.close()


def test_a_stream_that_is_taken_up_again_asks_for_what_it_missed(streaming: Api, worker: Worker) -> None:
    created = streaming.submit()
    stream = Stream(streaming, "GET", f"/v1/responses/{created['id']}?stream=true&starting_after=7")
    assert worker.asked_for() == [created["id"]]
    worker.publish(0, "one two")
    assert next(texts(iter(stream))) == " two"
    stream.close()


def test_an_answer_that_was_generated_anew_and_differently_is_an_error(streaming: Api, worker: Worker) -> None:
    events = iter(post(streaming, "/v1/completions", PROMPT))
    worker.publish(0, "one")
    assert next(events)["choices"][0]["text"] == "one"
    worker.publish(0, "two")
    end(streaming, "two three")
    (error,) = events
    assert error["error"]["code"] == "stream_diverged"


def test_a_message_whose_worker_was_lost_goes_on_or_ends_with_an_error(streaming: Api, worker: Worker) -> None:
    for regenerated, last in (("one two", "message_stop"), ("two three", "error")):
        streaming.sql("delete from requests")
        events = (one for one in post(streaming, "/v1/messages", MESSAGE) if one["type"] != "ping")
        assert next(events)["type"] == "message_start"
        worker.publish(0, "one")
        assert [next(events)["type"], next(events)["delta"]] == [
            "content_block_start",
            {"type": "text_delta", "text": "one"},
        ]
        worker.publish(0, regenerated)  # by the next worker, from its beginning
        end(streaming, regenerated)
        *_, ended = events
        assert ended["type"] == last
    assert (ended["error"]["type"], ended["error"]["code"]) == ("api_error", "stream_diverged")


def test_a_message_that_its_client_leaves_is_cancelled(api: Api) -> None:
    stream = post(api, "/v1/messages", MESSAGE)
    assert next(iter(stream))["type"] == "message_start"
    stream.close()
    assert [row.status for row in api.sql("select status from requests")] == ["cancelled"]


def test_garbage_on_the_channel_harms_no_stream(streaming: Api, worker: Worker, redis_url: str) -> None:
    pieces = texts(iter(post(streaming, "/v1/responses", RESPONSE)))
    worker.publish(0, "one")
    with redis.Redis.from_url(redis_url) as client:
        for garbage in (b"\xff", b"{}", b'[["a", "b", 3]]', b"[[]]", b"[" * 1000):
            client.publish(worker.channel, garbage)
    worker.publish(3, " two")
    end(streaming, "one two")
    assert "".join(pieces) == "one two"


def test_a_broker_that_is_away_delays_the_text_to_the_end(web_settings: Settings, api: Api) -> None:
    app = create_app(web_settings.model_copy(update={"redis_url": "redis://127.0.0.1:1/0"}))
    without = Api(app.test_client(), api.engine, api.key)
    pieces = texts(iter(post(without, "/v1/responses", RESPONSE)))
    end(without, "one two")
    assert list(pieces) == ["one two"]
    app.extensions["magnus"].close()
