"""Rows in a server that fails: what came is kept, what cannot be had goes back, garbage sets the server aside."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from inference.engine_requests import JsonFormat
from inference.remote.remote_engine import RemoteEngine
from inference.remote.server_errors import RowRefused, ServerUnusable
from inference.remote.server_probe import connect
from request_body import Sampling
from tests.integration.database_stage import eventually
from tests.integration.serving.remote.rows_on_stub import a_sequence, answered, ended, step_until
from tests.integration.stub_engine_server import (
    StubServer,
    answer_to,
    breaks_off_after,
    falls_silent_after,
    prompt_of,
    says,
)


def test_what_the_server_is_and_can_do_is_found_by_asking_it(server: StubServer):
    probed = connect(server.url + "/v1/")
    assert (probed.kind, probed.model, probed.max_positions, probed.capacity_tokens) == ("vllm", "stub", 4096, 1600)
    able = probed.capabilities
    assert (able.resumes, able.block_tokens, able.reports_waiting) == (True, 16, True)


def test_a_server_takes_budgets_of_thinking_if_it_refuses_wrong_ones(server: StubServer):
    assert "thinking_token_budget" in connect(server.url).capabilities.lacks  # it ignores the field
    takes, refuses = (200, json.dumps({"choices": [{"token_ids": [1]}]})), (400, "{}")
    server.posts = {"/v1/completions": takes}
    server.posts_once = [takes, takes, refuses]
    assert "thinking_token_budget" not in connect(server.url).capabilities.lacks
    asked = [body.get("thinking_token_budget") for body in server.bodies]
    assert asked[:3] == [None, 1, -2]
    server.posts_once = [takes, refuses, refuses]  # it has no reasoning parser
    assert "thinking_token_budget" in connect(server.url).capabilities.lacks


def test_rows_of_an_adapter_that_the_server_lists_go_to_it_by_its_name(server: StubServer):
    listed = [
        {"id": "stub", "owned_by": "vllm", "parent": None},
        {"id": "polite", "owned_by": "vllm", "parent": "stub"},
    ]
    server.pages = {"/v1/models": json.dumps({"data": listed})}
    probed = connect(server.url)
    assert (probed.model, probed.adapters) == ("stub", ("polite",))
    engine = RemoteEngine(probed)
    engine.insert([a_sequence("a", adapter="polite"), a_sequence("b")])
    assert {row.id for row in ended(engine).values()} == {"a", "b"}
    engine.close()
    assert sorted(body["model"] for body in server.bodies) == ["polite", "stub"]


def test_of_llamacpp_the_memory_of_one_slot_is_sure_and_its_slots_say_what_runs(server: StubServer):
    slots = [{"id": n, "n_ctx": 512, "is_processing": n == 0} for n in range(4)]
    props = {"total_slots": 4, "default_generation_settings": {"n_ctx": 512}}
    server.pages = {"/props": json.dumps(props), "/slots": json.dumps(slots), "/metrics": "", "/health": "{}"}
    found = connect(server.url, "llamacpp")
    assert (found.capacity_tokens, found.max_rows, found.max_positions) == (512, 4, 512)
    assert any("--capacity-tokens" in loss for loss in found.capabilities.losses())
    assert connect(server.url, "llamacpp", capacity_tokens=2048, max_rows=9).max_rows == 4
    engine = RemoteEngine(found)
    try:
        eventually(lambda: engine.watch.load.running == 1)
    finally:
        engine.close()


def test_a_server_of_another_model_or_none_is_refused_by_name(server: StubServer):
    with pytest.raises(ServerUnusable, match="does not serve other, but stub"):
        connect(server.url, model="other")
    with pytest.raises(ServerUnusable, match="ConnectError"):
        connect("http://127.0.0.1:1")


def test_rows_run_side_by_side_to_their_ends_and_limits(server: StubServer, engine: RemoteEngine):
    engine.insert([a_sequence("a", 10), a_sequence("b", 30), replace(a_sequence("c", 30), limit=4)])
    rows = ended(engine)
    assert {row_id: (row.generated_ids, row.reason) for row_id, row in rows.items()} == {
        "a": (answer_to(10), "eos"),
        "b": (answer_to(30), "eos"),
        "c": (answer_to(30)[:4], "limit"),
    }
    assert engine.figures.valid_tokens == 11 + 31 + 4


def test_a_slice_ends_unfinished_and_the_next_one_resumes(engine: RemoteEngine):
    ((first,), _) = engine.run([a_sequence()], iteration_limit=4)
    assert (first.generated_ids, first.reason) == (answer_to(10)[:4], "unfinished")
    ((second,), _) = engine.run([replace(a_sequence(), generated_ids=first.generated_ids)])
    assert (second.generated_ids, second.reason) == (answer_to(10), "eos")


def test_a_removed_row_leaves_the_server_at_once(server: StubServer, engine: RemoteEngine):
    server.gate.clear()
    engine.insert([a_sequence("a"), a_sequence("b")])
    eventually(lambda: server.running == 2)
    removed = engine.remove("a")
    assert removed is not None
    assert removed.reason == "removed"
    eventually(lambda: server.running == 1)
    server.gate.set()
    assert set(ended(engine)) == {"b"}
    assert engine.remove("b") is None


def test_a_preempted_row_goes_on_from_its_tokens(server: StubServer, engine: RemoteEngine):
    server.faults.append(falls_silent_after(3))
    engine.insert([a_sequence()])
    step_until(engine, lambda: engine.rows["a"] == 3)
    rest = engine.preempt("a")
    assert rest.generated_ids == answer_to(10)[:3]
    engine.insert([rest])
    assert ended(engine)["a"].generated_ids == answer_to(10)
    with pytest.raises(KeyError):
        engine.preempt("a")


def test_a_row_whose_last_token_has_come_has_ended_even_if_its_stream_goes_on(
    server: StubServer, make_engine: Callable[..., RemoteEngine]
):
    engine = make_engine(silent_s=2.0)
    server.always = falls_silent_after(11)
    engine.insert([a_sequence("a", tokens=10), a_sequence("b", tokens=10)])
    rows = step_until(engine, lambda: set(engine.rows.values()) == {11})
    with pytest.raises(KeyError):  # what went on after the end of the sequence would be no part of the answer
        engine.preempt("a")
    assert engine.remove("b") is None
    answers = {row.id: row for row in rows} | ended(engine)
    assert [(answers[one].reason, answers[one].generated_ids) for one in "ab"] == 2 * [("eos", answer_to(10))]
    assert len(server.prompts) == 2


def test_an_engine_closes_without_waiting_for_the_stream_of_a_row_that_has_ended(server: StubServer):
    engine = RemoteEngine(connect(server.url))
    server.always = falls_silent_after(11)
    engine.insert([a_sequence("a", tokens=10)])
    while engine.rows["a"] < 11:
        assert engine.step() == []
    engine.close()  # TimeoutError if the stream goes on


def test_priorities_are_passed_on(server: StubServer, engine: RemoteEngine):
    engine.insert([replace(a_sequence(), priority=3)])
    ended(engine)
    assert server.bodies[0]["priority"] == -3


def test_a_full_queue_in_the_server_lowers_the_rows_that_it_is_offered(server: StubServer, engine: RemoteEngine):
    server.always = falls_silent_after(4)
    engine.insert([a_sequence(str(n)) for n in range(8)])
    eventually(lambda: (engine.watch.report.max_rows or 0) > 8)  # every place is taken, got tokens, and nothing waits
    server.waiting = 14
    eventually(lambda: (engine.watch.report.max_rows or 99) < 8)


def test_each_token_has_its_log_probability_also_when_the_stream_broke(server: StubServer, engine: RemoteEngine):
    server.faults.extend([breaks_off_after(4), breaks_off_after(3)])
    row = answered(engine, a_sequence(tokens=10, top_logprobs=2))
    assert row.generated_ids == answer_to(10)
    assert [(one.id, one.logprob) for one in row.logprobs] == [(token, -token / 1000) for token in answer_to(10)]
    assert [[token for token, _ in one.likeliest] for one in row.logprobs] == [[n, n + 1] for n in answer_to(10)]


def test_a_preempted_row_takes_its_log_probabilities_along(server: StubServer, engine: RemoteEngine):
    server.always = falls_silent_after(4)
    engine.insert([a_sequence(tokens=10, top_logprobs=0)])
    while engine.rows["a"] < 4:
        assert engine.step() == []
    rest = engine.preempt("a")
    server.always = None
    engine.insert([rest])
    row = ended(engine)["a"]
    assert [one.id for one in row.logprobs] == list(row.generated_ids) == list(answer_to(10))
    engine.insert([replace(rest, logprobs=())])  # as a release that kept none left it: from the beginning
    assert ended(engine)["a"].logprobs == row.logprobs
    assert server.prompts[-1] == list(prompt_of(10))


def test_a_server_that_leaves_log_probabilities_out_answers_no_row_that_wants_them_and_all_others(
    server: StubServer, engine: RemoteEngine
):
    server.faults.append(says('data: {"choices": [{"text": "", "token_ids": [5], "finish_reason": null}]}', "", ""))
    engine.insert([a_sequence(tokens=3, top_logprobs=2)])
    row = ended(engine)["a"]
    assert (row.reason, row.refusal) == (
        "refused",
        str(RowRefused("it does not say the log probability of each token")),
    )
    assert engine.watch.report.fault is None


@pytest.mark.parametrize(
    "option",
    [
        {"format": JsonFormat()},
        {"sampling": Sampling(frequency_penalty=0.5)},  # the server counts only what one request generates
        {"sampling": Sampling(presence_penalty=-1.0)},
    ],
)
def test_an_answer_with_a_format_or_penalties_is_generated_in_one_piece(
    server: StubServer, engine: RemoteEngine, option: dict[str, Any]
):
    server.faults.extend([breaks_off_after(4), None])
    asked = a_sequence(tokens=10, generated_ids=(5,), **option)
    results = [engine.run([asked], iteration_limit=3)[0][0] for _ in range(2)]
    assert [(row.reason, row.generated_ids) for row in results] == [("failed", ()), ("eos", answer_to(10))]
    assert server.prompts == 2 * [list(prompt_of(10))]
    server.always = falls_silent_after(4)
    engine.insert([a_sequence(tokens=10, **option)])
    while engine.rows["a"] < 4:
        assert engine.step() == []
    assert engine.preempt("a").generated_ids == ()
