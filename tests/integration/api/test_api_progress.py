"""Streams that tell how long their answers still take."""

import itertools
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from models.planning.queue_snapshot import (
    AnswerForecast,
    ModelForecast,
    ModelForecasts,
    QueueSnapshot,
    write_queue_snapshot,
)
from scheduling.request import RowLength
from tests.integration.api.answer_streams import CHAT, MESSAGE, RESPONSE, Stream, end, post
from tests.integration.api_service import Api


def round_s(seconds: float | None) -> int:
    return -1 if seconds is None else 10 * round(seconds / 10 + 0.4)


def test_on_request_chunks_tell_the_tokens_so_far_and_the_seconds_left(api: Api) -> None:
    asked = CHAT | {"n": 2, "temperature": 1.0, "stream_options": {"include_progress": True}}
    events = iter(post(api, "/v1/chat/completions", asked))
    told = [one["magnus"] for one in itertools.islice((one for one in events if not one["choices"]), 2)]
    assert [(one["index"], one["tokens_so_far"], one["queue_position"]) for one in told] == [(0, 0, None), (1, 0, None)]
    first, second = (row.id for row in api.sql("select id from requests order by id"))
    jobs = {first: AnswerForecast(None, 40.0, 30.0, 60.0), second: AnswerForecast(1, 80.0, 70.0, 90.0)}
    forecast = ModelForecast(at=time.time(), jobs=jobs)
    with api.engine.begin() as connection:
        now = datetime.now(UTC)
        snapshot = QueueSnapshot(at=now, forecasts=ModelForecasts(of_models={"words": forecast}))
        write_queue_snapshot(connection, snapshot)
    expected = {40: (None, 30, 60), 80: (1, 70, 90)}
    for eta_s, (position, low_s, high_s) in expected.items():
        one = next(one["magnus"] for one in events if not one["choices"] and round_s(one["magnus"]["eta_s"]) == eta_s)
        assert (one["queue_position"], round_s(one["eta_low_s"]), round_s(one["eta_high_s"])) == (
            position,
            low_s,
            high_s,
        )
    end(api, "one two")
    *_, last = events
    assert last["choices"][0]["finish_reason"] == "stop"


def forecast(api: Api, tokens: RowLength) -> None:
    """Publishes as the planner does that each request will have this length, in 40 s."""
    jobs = {row.id: AnswerForecast(None, 40.0, 30.0, 60.0, tokens) for row in api.sql("select id from requests")}
    of_models = {"words": ModelForecast(at=time.time(), jobs=jobs)}
    with api.engine.begin() as connection:
        write_queue_snapshot(
            connection, QueueSnapshot(at=datetime.now(UTC), forecasts=ModelForecasts(of_models=of_models))
        )


def test_on_request_responses_tell_the_tokens_and_seconds_left_between_their_other_events(api: Api) -> None:
    stream = post(api, "/v1/responses", RESPONSE | {"stream_options": {"include_progress": True}})
    events = iter(stream)
    created, first = next(events), next(events)
    assert (created["type"], first["type"], first["magnus"]["tokens_left"]) == (
        "response.created",
        "magnus.progress",
        None,
    )
    forecast(api, RowLength(0, 7, 9))
    told = next(one["magnus"] for one in events if one["type"] == "magnus.progress" and one["magnus"]["eta_s"])
    low, left, high = (told[f"tokens_left{end}"] for end in ("_low", "", "_high"))
    assert low < left < high
    assert (told["tokens_so_far"], left, round_s(told["eta_s"])) == (0, 7, 40)
    end(api, "one two")
    rest = [one for one in events if one["type"] != "magnus.progress"]
    assert (rest[0]["type"], rest[-1]["type"]) == ("response.in_progress", "response.completed")
    assert stream.comments == []


@pytest.mark.parametrize(
    ("path", "body", "asked"),
    [
        ("/v1/chat/completions", CHAT, "comment"),
        ("/v1/responses", RESPONSE, "comment"),
        ("/v1/messages", MESSAGE, "comment"),
        ("/v1/messages", MESSAGE, True),  # Anthropic's clients know the events of a message: it is always a comment
    ],
)
def test_progress_may_come_in_comments_which_clients_skip(
    api: Api, path: str, body: dict[str, Any], asked: object
) -> None:
    api.sql("delete from requests")
    plain = post(api, path, body)
    end(api, "one two")
    kinds = [one.get("type") for one in plain]
    assert plain.comments == []

    api.sql("delete from requests")
    stream = post(api, path, body | {"stream_options": {"include_progress": asked}})
    events = iter(stream)
    seen = [next(events)]
    forecast(api, RowLength(0, 7, 9))
    end(api, "one two")
    seen += events
    assert [one.get("type") for one in seen] == kinds
    assert [told["index"] for told in stream.comments] == [0] * len(stream.comments)
    assert stream.comments[-1]["tokens_left"] in (7, None)  # None: the end came before the forecast was read
    assert stream.comments


def test_a_stream_that_is_read_later_tells_its_progress_too(api: Api) -> None:
    first = post(api, "/v1/responses", RESPONSE)
    [row] = api.sql("select id from requests")
    later = Stream(api, "GET", f"/v1/responses/{row.id}?stream=true&include_progress=true")
    events = iter(later)
    assert [next(events)["type"], next(events)["type"]] == ["response.created", "magnus.progress"]
    later.close()
    first.close()


def test_progress_is_refused_by_name_where_nothing_is_streamed(api: Api) -> None:
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/messages", MESSAGE)):
        asked = body | {"stream": False, "stream_options": {"include_progress": True}}
        answer = api.call("POST", path, json=asked)
        assert (answer.status_code, answer.json["error"]["param"]) == (400, "stream_options")
