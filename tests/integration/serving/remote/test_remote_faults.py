"""What becomes of rows in a server that breaks, stalls, lies or comes back as another one."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle

import pytest

from inference.engine_requests import FinishedRow
from inference.remote.remote_engine import RemoteEngine
from inference.remote.server_errors import MOST_LOSSES, ServerLostOften
from inference.remote.server_probe import connect
from request_body import Sampling
from tests.integration.database_stage import eventually
from tests.integration.serving.remote.rows_on_stub import a_sequence, answered, ended, step_until
from tests.integration.stub_engine_server import (
    Fault,
    StubServer,
    answer_to,
    breaks_off_after,
    falls_silent_after,
    refuses,
    says,
)


def ends(reason: str) -> str:
    return "data: " + json.dumps({"choices": [{"token_ids": [], "finish_reason": reason}]})


EARLY_LENGTH = {"choices": [{"token_ids": list(answer_to(10)[:4]), "finish_reason": "length"}]}
STATUSES = (400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 501, 502, 503, 504, 529)
REASONS = ("length", "stop", "abort", "error", "content_filter", "tool_calls", "weary")
STREAMS = ("", "data: [DONE]", "data: {", "data: 5", "<html>", 'data: {"error": "no"}', 'data: {"choices": 5}')
EVERY_FAULT = [
    *(refuses(status) for status in STATUSES),
    *(says(ends(reason), "") for reason in REASONS),
    *(says(lines, "") for lines in STREAMS),
    *(breaks_off_after(tokens) for tokens in range(3)),
]


def test_a_broken_stream_is_resumed_from_the_ids_that_came(server: StubServer, engine: RemoteEngine):
    server.faults += [breaks_off_after(3), breaks_off_after(4)]
    assert answered(engine, a_sequence()).generated_ids == answer_to(10)
    assert [len(prompt) - 2 for prompt in server.prompts] == [0, 3, 7]  # nothing is generated twice


def test_a_row_that_begins_anew_after_each_broken_stream_has_failed(server: StubServer, engine: RemoteEngine):
    server.faults.append(breaks_off_after(3))
    engine.insert([a_sequence(sampling=Sampling(temperature=1.0, seed=1))])
    assert ended(engine)["a"].reason == "failed"


def test_a_row_whose_stream_breaks_each_time_has_failed_if_its_server_answers_others_meanwhile(
    server: StubServer, engine: RemoteEngine
):
    row, reasons = a_sequence(tokens=30), []
    for _ in range(MOST_LOSSES):
        server.faults += [breaks_off_after(2), None]
        engine.insert([row])
        result = ended(engine)["a"]
        reasons.append(result.reason)
        row = replace(row, generated_ids=result.generated_ids)
        engine.insert([a_sequence("b")])
        assert ended(engine)["b"].reason == "eos"
    assert reasons == ["unfinished", "unfinished", "unfinished"]  # the first break counts once others are answered
    server.faults.append(breaks_off_after(2))
    engine.insert([row])
    assert ended(engine)["a"].reason == "failed"


def test_a_server_that_breaks_every_stream_after_a_token_is_set_aside_and_blames_no_row(
    server: StubServer, engine: RemoteEngine
):
    server.always = breaks_off_after(1)
    engine.insert([a_sequence(tokens=30)])
    result = ended(engine)["a"]
    assert (result.reason, result.generated_ids) == ("unfinished", answer_to(30)[:1])
    eventually(lambda: "a trial failed: the connection was lost" in (engine.watch.report.fault or ""))


def test_an_answer_that_is_whole_waits_for_no_trial(server: StubServer, engine: RemoteEngine):
    whole = {"choices": [{"token_ids": list(answer_to(10)), "finish_reason": "stop"}]}
    server.faults.append(says(f"data: {json.dumps(whole)}", "", "no event", ""))
    engine.insert([a_sequence()])
    assert ended(engine)["a"].generated_ids == answer_to(10)
    assert engine.watch.report.fault is None


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


@pytest.mark.parametrize(
    "fault",
    [refuses(500, "tired"), refuses(404, "tired"), says(ends("content_filter"), ""), says(ends("stop"), "")],
)
def test_a_row_that_a_server_does_not_answer_has_failed_if_the_server_then_answers_a_trial(
    server: StubServer, engine: RemoteEngine, fault: Fault
):
    server.faults.append(fault)
    engine.insert([a_sequence()])
    row = ended(engine)["a"]
    assert (row.reason, row.generated_ids) == ("failed", ())
    assert row.refusal
    engine.insert([a_sequence()])
    assert ended(engine)["a"].reason == "eos"  # the server is not blamed


@pytest.mark.parametrize("status", [400, 401, 404, 422, 500, 502, 503])
def test_no_row_is_blamed_for_what_a_server_answers_to_a_trial_too(
    server: StubServer, engine: RemoteEngine, status: int
):
    server.always = refuses(status, "tired")
    engine.insert([a_sequence(str(n)) for n in range(4)])
    assert {row.reason for row in ended(engine).values()} == {"unfinished"}
    eventually(lambda: engine.watch.report.fault)
    server.always = None
    eventually(lambda: engine.watch.report.fault is None)


def test_a_row_that_its_server_ends_before_its_limit_goes_on(server: StubServer, engine: RemoteEngine):
    server.faults.append(says(f"data: {json.dumps(EARLY_LENGTH)}", ""))
    assert answered(engine, a_sequence()).generated_ids == answer_to(10)


def test_300_requests_are_answered_beside_a_server_that_fails_in_every_way(
    server: StubServer, make_engine: Callable[..., RemoteEngine]
):
    healthy, sick_server = make_engine(), StubServer()
    faults = cycle(EVERY_FAULT)
    sick_server.always = lambda handler, body: next(faults)(handler, body)
    sick_server_calls = sick_server.prompts
    sick = RemoteEngine(connect(sick_server.url))
    waiting, failures = {str(n): a_sequence(str(n), 3) for n in range(300)}, Counter[str]()
    try:
        while waiting:
            for engine in (sick, healthy):  # the sick one first, as it looks idle
                report = engine.watch.report
                free = 0 if report.fault else (report.max_rows or 8) - len(engine.rows)
                running = sick.rows.keys() | healthy.rows.keys()
                engine.insert([row for name, row in waiting.items() if name not in running][: max(0, free)])
                for row in engine.step():
                    failures[row.id] += row.reason == "failed"
                    if row.reason not in ("unfinished", "failed"):
                        assert (row.reason, row.generated_ids) == ("eos", answer_to(3))
                        del waiting[row.id]
    finally:
        sick.close()
        sick_server.die()
    assert max(failures.values()) < 3  # with MAX_ATTEMPTS a request fails
    assert len(sick_server_calls) < 15  # 5 % of the requests


def test_the_rows_of_a_server_that_dies_go_back_with_their_tokens(server: StubServer, engine: RemoteEngine):
    server.always = falls_silent_after(5)
    engine.insert([a_sequence(str(n), 50 + n) for n in range(60)])
    step_until(engine, lambda: min(engine.rows.values()) >= 5)
    server.die()
    rows = ended(engine)
    assert len(rows) == 60
    assert {row.reason for row in rows.values()} == {"unfinished"}
    assert all(row.generated_ids == answer_to(50 + int(row_id))[:5] for row_id, row in rows.items())
    eventually(lambda: engine.watch.report.fault)


def test_a_server_that_is_back_gets_work_again(server: StubServer, engine: RemoteEngine):
    server.die()
    engine.insert([a_sequence()])
    assert ended(engine)["a"].reason == "unfinished"
    eventually(lambda: engine.watch.report.fault)
    again = StubServer(server.server_port)
    try:
        eventually(lambda: engine.watch.report.fault is None)
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
        eventually(lambda: "other" in (engine.watch.report.fault or ""))
        assert again.prompts == []
    finally:
        again.die()


def test_rows_that_a_server_is_lost_with_again_and_again_are_suspects(server: StubServer, engine: RemoteEngine):
    for _ in range(MOST_LOSSES - 1):
        assert {row.reason for row in _lost_with_a_row(server, engine).values()} == {"unfinished"}
        server = StubServer(server.server_port)
        eventually(lambda: engine.watch.report.fault is None)
    with pytest.raises(ServerLostOften):
        _lost_with_a_row(server, engine)


def _lost_with_a_row(server: StubServer, engine: RemoteEngine) -> dict[str, FinishedRow]:
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
    eventually(lambda: "the server's answer cannot be read" in (engine.watch.report.fault or ""))
    server.always = None
    eventually(lambda: engine.watch.report.fault is None)  # a trial succeeded


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
