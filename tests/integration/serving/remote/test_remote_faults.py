"""What becomes of rows in a server that breaks, stalls, lies or comes back as another one."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from inference.remote.remote_engine import MOST_LOSSES, RemoteEngine, ServerLostOften
from inference.sequences import FinishedSequence
from tests.integration.database_stage import eventually
from tests.integration.serving.remote.rows_on_stub import a_sequence, ended, step_until
from tests.integration.stub_engine_server import (
    StubServer,
    answer_to,
    breaks_off_after,
    falls_silent_after,
    refuses,
    says,
)


def test_a_broken_stream_is_resumed_from_the_ids_that_came(server: StubServer, engine: RemoteEngine):
    server.faults += [breaks_off_after(3), breaks_off_after(4)]
    engine.insert([a_sequence()])
    assert ended(engine)["a"].generated_ids == answer_to(10)
    assert [len(prompt) - 2 for prompt in server.prompts] == [0, 3, 7]  # nothing is generated twice


@pytest.mark.parametrize("status", [429, 503, 529])
def test_a_busy_server_is_asked_again(server: StubServer, engine: RemoteEngine, status: int):
    server.faults += [refuses(status, Retry_After="0.1"), refuses(status, Retry_After="soon")]
    engine.insert([a_sequence()])
    assert ended(engine)["a"].reason == "eos"


@pytest.mark.long
def test_after_a_thousand_refusals_of_a_busy_server_every_row_is_answered_and_none_is_left(
    server: StubServer, engine: RemoteEngine
):
    server.faults += [refuses(503)] * 1000
    waiting = {str(n) for n in range(100)}
    while waiting:  # a row that waited for too long goes back to the queue, and comes again
        engine.insert([a_sequence(row_id, 3) for row_id in waiting])
        waiting = {row.id for row in ended(engine).values() if row.reason == "unfinished"}
    assert not server.faults
    assert (engine.rows, server.running) == ({}, 0)
    engine.insert([a_sequence()])
    assert ended(engine)["a"].generated_ids == answer_to(10)


def test_a_request_that_the_server_refuses_fails_with_its_words(server: StubServer, engine: RemoteEngine):
    server.faults.append(refuses(400, "too long by far"))
    engine.insert([a_sequence()])
    row = ended(engine)["a"]
    assert row.reason == "refused"
    assert "too long by far" in row.refusal


def test_a_request_on_which_a_living_server_fails_each_time_fails(server: StubServer, engine: RemoteEngine):
    server.faults += [refuses(500)] * 4
    engine.insert([a_sequence()])
    assert ended(engine)["a"].reason == "refused"


def test_the_rows_of_a_server_that_dies_go_back_with_their_tokens(server: StubServer, engine: RemoteEngine):
    server.always = falls_silent_after(5)
    engine.insert([a_sequence(str(n), 50 + n) for n in range(60)])
    step_until(engine, lambda: min(engine.rows.values()) >= 5)
    server.die()
    rows = ended(engine)
    assert len(rows) == 60
    assert {row.reason for row in rows.values()} == {"unfinished"}
    assert all(row.generated_ids == answer_to(50 + int(row_id))[:5] for row_id, row in rows.items())
    eventually(lambda: engine.watch.offer.fault)


def test_a_server_that_is_back_gets_work_again(server: StubServer, engine: RemoteEngine):
    server.die()
    engine.insert([a_sequence()])
    assert ended(engine)["a"].reason == "unfinished"
    eventually(lambda: engine.watch.offer.fault)
    again = StubServer(server.server_port)
    try:
        eventually(lambda: engine.watch.offer.fault is None)
        engine.insert([a_sequence()])
        assert ended(engine)["a"].reason == "eos"
    finally:
        again.die()


def test_a_server_that_is_back_with_another_model_gets_none(server: StubServer, engine: RemoteEngine):
    server.die()
    engine.insert([a_sequence()])
    assert ended(engine)["a"].reason == "unfinished"
    again = StubServer(server.server_port)
    again.model = "other"
    try:
        eventually(lambda: "other" in (engine.watch.offer.fault or ""))
        assert again.prompts == []
    finally:
        again.die()


def test_rows_that_a_server_is_lost_with_again_and_again_are_suspects(server: StubServer, engine: RemoteEngine):
    for _ in range(MOST_LOSSES - 1):
        assert {row.reason for row in _lost_with_a_row(server, engine).values()} == {"unfinished"}
        server = StubServer(server.server_port)
        eventually(lambda: engine.watch.offer.fault is None)
    with pytest.raises(ServerLostOften):
        _lost_with_a_row(server, engine)


def _lost_with_a_row(server: StubServer, engine: RemoteEngine) -> dict[str, FinishedSequence]:
    server.always = falls_silent_after(1)
    engine.insert([a_sequence()])
    step_until(engine, lambda: engine.rows["a"] == 1)
    server.die()
    return ended(engine)


@pytest.mark.parametrize(
    "lines",
    [
        ["<html>"],
        ["data: {"],
        ["data: 5"],
        ["data: " + "[" * 100_000],
        ['data: {"choices": 5}'],
        ['data: {"choices": [{"token_ids": ["x"]}]}'],
        ['data: {"choices": [{"token_ids": [-1]}]}'],
        ['data: {"choices": [{"token_ids": [true]}]}'],
        ['data: {"choices": [{"finish_reason": "weary"}]}'],
        ["data: " + json.dumps({"choices": [{"token_ids": [5] * 2000}]})],
        ["data: " + "x" * 2**21],
    ],
)
def test_garbage_sets_the_server_aside_and_the_row_goes_back(
    server: StubServer, engine: RemoteEngine, lines: list[str]
):
    server.always = says(*lines, "")
    engine.insert([a_sequence()])
    assert ended(engine)["a"].reason == "unfinished"
    eventually(lambda: "the server's answer cannot be read" in (engine.watch.offer.fault or ""))
    server.always = None
    eventually(lambda: engine.watch.offer.fault is None)  # a trial succeeded


def test_a_silent_stream_is_given_up(server: StubServer, make_engine: Callable[..., RemoteEngine]):
    engine = make_engine(silent_s=0.2)
    server.faults.append(falls_silent_after(3))
    engine.insert([a_sequence()])
    row = ended(engine)["a"]
    assert (row.reason, row.generated_ids) == ("unfinished", answer_to(10)[:3])
    eventually(lambda: server.running == 0)


def test_an_error_that_no_stream_foresaw_reaches_the_engines_thread(engine: RemoteEngine, monkeypatch):
    broken = replace(engine.server, url=engine.server.url)
    object.__setattr__(broken, "kind", "unknown")
    engine.server = broken
    engine.insert([a_sequence()])
    with pytest.raises(KeyError):
        ended(engine)
