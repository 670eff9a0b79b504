"""A worker's threads on a real engine and a real Postgres: leases, answers, memory, cancels, slices, joins."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.row_probe import RowProbe
from models.leasing import worker_registration
from scheduling.request import RowLength
from scheduling.worker_facts import WorkerReport
from tests.integration.database_stage import MODEL, Stage, eventually
from tests.integration.serving_worker import Serving, small_model
from tests.integration.small_model import UNKNOWN_TO_MODEL


def test_a_batch_is_answered_with_what_the_model_generates_for_each_request_alone(stage: Stage, serving: Serving):
    inputs = {"r1": "abc", "r2": "hello world", "r3": "x"}
    for request_id, words in inputs.items():
        stage.request(request_id, input=words, limit_tokens=12)
    batch_id = serving.serve(*inputs)
    answers = stage.requests("status", "finish_reason", "output_tokens", "output_text")
    assert answers == {r: ("incomplete", "limit", 12, serving.alone(words, 12)) for r, words in inputs.items()}
    assert serving.batch(batch_id, "status, iterations, generation_length, valid_tokens, fence") == (
        "finished",
        12,
        12,
        36,
        1,
    )


def test_an_answer_is_stored_with_the_tokens_of_its_prompt_that_its_tenant_had_cached(stage: Stage, serving: Serving):
    words = "the same beginning of every prompt, which is longer than a block "
    for request_id, tenant in [("first", "a"), ("second", "a"), ("others", "b")]:
        stage.request(request_id, input=words + request_id, tenant=tenant, limit_tokens=4)
        serving.serve(request_id, joins=True)
    cached = stage.requests("cached_tokens")
    assert (cached["first"], cached["others"]) == (0, 0)
    assert cached["second"] >= 32
    assert stage.requests("output_text")["second"] == serving.alone(words + "second", 4)


def test_a_batch_delivered_twice_runs_once(stage: Stage, serving: Serving):
    stage.request("r1", limit_tokens=200)
    batch_id = serving.assign("r1")
    for delivery in [serving.start(batch_id) for _ in range(4)]:
        delivery.result(timeout=60)
    assert serving.batch(batch_id, "fence, status") == (1, "finished")
    assert stage.requests("status", "attempts") == {"r1": ("incomplete", 1)}


@pytest.mark.parametrize("failed", [True, False], ids=["failed", "in order"])
def test_a_batch_that_arrives_while_the_worker_leaves_is_not_blamed_for_its_end(
    stage: Stage, serving: Serving, failed: bool
):
    if failed:
        serving.runner._heartbeat._break_off("the engine's thread ended")
    else:
        serving.runner.stop()
    stage.request("r1")
    serving.start(serving.assign("r1")).result(timeout=60)  # the planner decided before the worker had left
    with stage.database.begin() as connection:
        worker_registration.register(connection, serving.runner._facts)
    assert stage.requests("status", "suspected") == {"r1": ("queued", 0)}


def test_another_workers_batch_is_left_alone(stage: Stage, serving: Serving):
    stage.request("r1")
    batch_id = serving.assign("r1")
    stage.sql("update batches set worker = 'w2'")
    serving.start(batch_id).result(timeout=60)
    assert serving.batch(batch_id) == "assigned"


def test_a_stale_fence_writes_nothing_and_the_engine_drops_the_batch(stage: Stage, serving: Serving):
    stage.request("r1", limit_tokens=4000)
    batch_id = serving.assign("r1")
    delivery = serving.start(batch_id)
    serving.running(batch_id)
    stage.sql("update batches set fence = fence + 1")  # as if another process had taken it over
    delivery.result(timeout=60)
    stage.request("r2", limit_tokens=5)
    serving.serve("r2")
    assert serving.batch(batch_id) == "running"
    assert stage.requests("status", "output_text") == {
        "r1": ("in_progress", None),
        "r2": ("incomplete", serving.alone("abc", 5)),
    }


def test_a_batch_beyond_the_memory_ends_as_out_of_memory_and_its_requests_wait_to_be_split(stage: Stage, make_serving):
    serving = make_serving(kv_tokens=100)
    for request_id in ("r1", "r2", "r3", "r4"):
        stage.request(request_id, input="a" * 20, limit_tokens=20, planner_epoch=7)
    whole = serving.serve("r1", "r2", "r3", "r4")
    assert serving.batch(whole) == "out_of_memory"
    assert set(stage.requests("status", "planner_epoch", "sealed_group", "attempts").values()) == {
        ("queued", 0, str(whole), 0)
    }
    half = serving.serve("r1", "r2")
    assert serving.batch(half) == "finished"


def test_what_a_slice_leaves_unfinished_goes_back_and_goes_on_where_it_stopped(stage: Stage, serving: Serving):
    stage.request("r1", limit_tokens=25)
    for generated in (10, 20):
        serving.serve("r1", iteration_limit=10)
        assert stage.requests("status", "cardinality(generated_ids)", "planner_epoch") == {
            "r1": ("queued", generated, 0)
        }
    serving.serve("r1", iteration_limit=10)
    assert stage.requests("status", "output_text", "attempts") == {"r1": ("incomplete", serving.alone("abc", 25), 1)}


@pytest.mark.parametrize("joins", [False, True])
def test_a_running_request_is_cancelled_with_what_it_has_and_its_batch_goes_on(
    stage: Stage, serving: Serving, joins: bool
):
    stage.request("r1", limit_tokens=4000)
    stage.request("r2", input="hello", limit_tokens=600)
    batch_id = serving.assign("r1", "r2", joins=joins)
    delivery = serving.start(batch_id)
    serving.running(batch_id)
    stage.sql("update requests set cancel_requested_at = clock_timestamp() where id = 'r1'")
    delivery.result(timeout=60)
    answers = stage.requests("status", "output_text", "output_tokens")
    status, text, tokens = answers["r1"]
    assert (status, text) == ("cancelled", serving.alone("abc", tokens))
    assert answers["r2"] == ("incomplete", serving.alone("hello", 600), 600)
    ((waited,),) = stage.sql("select finished_at - cancel_requested_at from requests where id = 'r1'")
    assert waited.total_seconds() < 1.0


def test_a_request_cancelled_before_its_batch_was_taken_never_runs(stage: Stage, serving: Serving):
    stage.request("r1")
    stage.request("r2")
    batch_id = serving.assign("r1", "r2")
    stage.sql("update requests set cancel_requested_at = clock_timestamp() where id = 'r1'")
    serving.start(batch_id).result(timeout=60)
    assert stage.requests("status") == {"r1": "cancelled", "r2": "incomplete"}
    assert serving.batch(batch_id, "valid_tokens") == 20


def test_rows_of_several_batches_share_the_engine_and_each_batch_ends_with_its_own(stage: Stage, serving: Serving):
    stage.request("long", limit_tokens=4000)
    long = serving.assign("long", joins=True)
    first = serving.start(long)
    serving.running(long)
    for n in range(6):
        stage.request(f"r{n}", input="abcdef"[: n + 1], limit_tokens=5 + n)
    joined = [serving.start(serving.assign(f"r{n}", f"r{n + 1}", joins=True)) for n in (0, 2, 4)]
    for delivery in joined:
        delivery.result(timeout=60)
    assert serving.batch(long) == "running"
    stage.sql("update requests set cancel_requested_at = clock_timestamp() where id = 'long'")
    first.result(timeout=60)
    ((tokens,),) = stage.sql("select output_tokens from requests where id = 'long'")
    answers = stage.requests("output_text")
    for n in range(6):
        assert answers[f"r{n}"] == serving.alone("abcdef"[: n + 1], 5 + n)
    assert answers["long"] == serving.alone("abc", tokens)
    assert stage.sql("select sum(valid_tokens) from batches") == [(tokens + sum(range(5, 11)),)]


def test_a_joiner_can_send_a_running_row_back_to_the_queue_with_what_it_has(stage: Stage, serving: Serving):
    stage.request("long", limit_tokens=1500)
    long = serving.assign("long", joins=True)
    first = serving.start(long)
    serving.running(long)
    stage.request("urgent", limit_tokens=5)
    serving.serve("urgent", joins=True, preempts=["long"])
    first.result(timeout=60)
    ((status, generated),) = stage.sql("select status, cardinality(generated_ids) from requests where id = 'long'")
    assert status == "queued"
    assert generated > 2
    serving.serve("long", joins=True)
    assert stage.requests("output_text")["long"] == serving.alone("abc", 1500)


def test_joiners_that_never_fit_wait_for_the_running_rows_and_end_as_out_of_memory(stage: Stage, make_serving):
    serving = make_serving(kv_tokens=1500)
    stage.request("long", limit_tokens=1000)
    long = serving.assign("long", joins=True)
    first = serving.start(long)
    serving.running(long)
    for n in range(4):
        stage.request(f"r{n}", input="a" * 600, limit_tokens=10)
    batch_id = serving.serve("r0", "r1", "r2", "r3", joins=True)
    assert serving.batch(batch_id) == "out_of_memory"
    first.result(timeout=60)
    assert stage.requests("output_text")["long"] == serving.alone("abc", 1000)


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("tokens", [{"input": "a" * 200, "limit_tokens": 10}, {"limit_tokens": 400}])
def test_a_request_that_outgrows_the_memory_alone_goes_back_for_a_larger_worker(
    stage: Stage, make_serving, joins: bool, tokens: dict[str, Any]
):
    serving = make_serving(kv_tokens=100)
    stage.request("r1", **tokens)
    serving.serve("r1", joins=joins)
    assert stage.requests("status", "outgrew_tokens", "attempts", "sealed_group", "suspected") == {
        "r1": ("queued", 100, 0, None, 0)
    }


def test_a_prompt_beyond_the_models_positions_fails_alone(stage: Stage, serving: Serving):
    stage.request("r1", input="a" * 5000)
    stage.request("r2")
    serving.serve("r1", "r2")
    assert stage.requests("status", "error->>'code'") == {
        "r1": ("failed", "context_length_exceeded"),
        "r2": ("incomplete", None),
    }


@pytest.mark.parametrize("joins", [False, True])
def test_requests_on_which_the_engine_failed_together_are_suspects_and_not_charged(stage, serving, joins: bool):
    stage.request("guilty", input=UNKNOWN_TO_MODEL)
    stage.request("innocent")
    batch_id = serving.serve("guilty", "innocent", joins=joins)
    assert serving.batch(batch_id) == "lost"
    columns = stage.requests("status", "suspect_group", "suspected", "attempts", "planner_epoch")
    assert columns == dict.fromkeys(("guilty", "innocent"), ("queued", str(batch_id), 1, 0, 0))
    serving.serve("innocent")
    serving.serve("guilty")
    assert stage.requests("status", "error->>'code'", "attempts") == {
        "guilty": ("failed", "server_error", 2),
        "innocent": ("incomplete", None, 1),
    }
    ((message,),) = stage.sql("select error->>'message' from requests where id = 'guilty'")
    assert "IndexError" in message


def test_an_engine_may_fail_on_many_requests_and_the_worker_goes_on(stage: Stage, serving: Serving):
    for n in range(4):
        stage.request(f"r{n}", input=UNKNOWN_TO_MODEL)
        serving.serve(f"r{n}")
        serving.serve(f"r{n}")
    stage.request("last")
    serving.serve("last")
    assert set(stage.requests("status").values()) == {"failed", "incomplete"}
    assert stage.requests("status")["last"] == "incomplete"
    assert serving.broken == []


@pytest.mark.parametrize("joins", [False, True])
def test_what_a_stopping_worker_cannot_finish_goes_on_elsewhere_and_no_token_is_computed_twice(
    stage: Stage, make_serving, joins: bool
):
    leaving = make_serving()
    stage.request("r1", limit_tokens=1500)
    stage.request("r2")
    running, waiting = leaving.assign("r1", joins=joins), leaving.assign("r2")
    deliveries = [leaving.start(running)]
    leaving.running(running)
    deliveries.append(leaving.start(waiting))
    eventually(lambda: leaving.batch(waiting) == "running")
    leaving.runner.drain(within_s=30.0)
    leaving.runner.stop()
    for delivery in deliveries:
        delivery.result(timeout=60)
    assert stage.sql("select stopped_at is not null from workers") == [(True,)]
    requests = stage.requests("status", "cardinality(generated_ids)", "attempts", "suspected")
    assert requests == {"r1": ("queued", leaving.batch(running, "valid_tokens"), 0, 0), "r2": ("queued", 0, 0, 0)}
    assert requests["r1"][1] > 2
    first_token = stage.requests("first_token_at")
    assert (first_token["r1"] is None, first_token["r2"] is None) == (False, True)
    make_serving().serve("r1", "r2", joins=joins)
    answers = stage.requests("output_text", "output_tokens")
    assert answers == {"r1": (leaving.alone("abc", 1500), 1500), "r2": (leaving.alone("abc", 20), 20)}
    assert stage.sql("select sum(valid_tokens) from batches") == [(1520,)]
    assert stage.requests("first_token_at")["r1"] == first_token["r1"]
    assert stage.sql("select bool_and(first_token_at between arrived_at and finished_at) from requests") == [(True,)]


def test_a_worker_that_starts_again_gives_back_what_its_earlier_process_left(stage: Stage, make_serving):
    first = make_serving()
    stage.request("r1", limit_tokens=4000)
    batch_id = first.assign("r1")
    delivery = first.start(batch_id)
    first.running(batch_id)
    make_serving()
    assert first.batch(batch_id) == "lost"
    assert stage.requests("status", "attempts", "suspected", "planner_epoch") == {"r1": ("queued", 0, 1, 0)}
    delivery.result(timeout=60)
    eventually(lambda: first.broken == ["another process took this worker's name"])


HOSTILE: dict[str, dict[str, Any]] = {
    "cold": {"sampling": {"temperature": 1e-38}},
    "colder": {"sampling": {"temperature": 5e-324, "top_p": 5e-324, "top_k": 2**31 - 1}},
    "hot": {"sampling": {"temperature": 2.0, "seed": 2**63 - 1}},
    "narrow": {"sampling": {"temperature": 1e-5, "top_p": 1e-38, "seed": 0}},
    "one": {"sampling": {"temperature": 1e-4, "top_k": 1}},
    "stops": {"stop": ["\u202e\u05d0", "\U0001f469\u200d\U0001f680" * 20], "sampling": {}},
}


@pytest.mark.parametrize("joins", [False, True])
def test_hostile_parameters_beside_ordinary_requests_harm_nobody(stage: Stage, serving: Serving, joins: bool):
    ordinary = {f"r{n}": "abcdef"[: n + 1] for n in range(6)}
    for name, words in ordinary.items():
        stage.request(name, input=words)
    for name, body in HOSTILE.items():
        stage.request(name, body=body, input="\u0645\u0631\u062d\u0628\u0627 \u202e\U0001f525" * 50)
    serving.serve(*ordinary, *HOSTILE, joins=joins)
    answers = stage.requests("status", "attempts", "output_text")
    assert {answers[name] for name in ordinary} == {
        ("incomplete", 1, serving.alone(words, 20)) for words in ordinary.values()
    }
    assert {answers[name][:2] for name in HOSTILE} <= {("incomplete", 1), ("completed", 1)}


EVERY = 16  # steps between two readings


@dataclass
class FixedProbe:
    """Predicts the same length of every row once it has read some, and keeps what it was told of it."""

    lengths: dict[str, RowLength] = field(default_factory=dict)
    known: list[list[float]] = field(default_factory=list)
    ends: list[tuple[str, int]] = field(default_factory=list)

    def read(self, ids: Sequence[str], known: Any, states: Any, joining: bool = False) -> None:
        self.lengths, self.known = {name: RowLength(EVERY, 30, 35) for name in ids}, known.tolist()

    def ended(self, row_id: str, tokens: int) -> None:
        self.ends.append((row_id, tokens))


def test_a_probe_knows_the_arrivals_prediction_and_its_own_reaches_the_workers_row(
    stage: Stage, tmp_path_factory: pytest.TempPathFactory
):
    loaded, prompt_format = small_model(tmp_path_factory.getbasetemp() / MODEL)
    probe = FixedProbe()
    stage.request("r1", limit_tokens=EVERY + 8, predicted_tokens=20, predicted_upper_tokens=22)
    serving = Serving(
        stage,
        loaded,
        prompt_format,
        100_000,
        lambda: Engine(
            loaded, 100_000 * loaded.delta_bytes, EngineOptions(probe=RowProbe(loaded.decoder, probe, EVERY))
        ),
        report=lambda: WorkerReport(row_lengths=probe.lengths),
    )
    serving.serve("r1", joins=True)
    told = """select 1 from workers where report->'row_lengths' = '{"r1": [16, 30, 35]}'"""
    eventually(lambda: stage.sql(told))
    serving.close()
    (known,) = probe.known
    assert known[1:] == [EVERY, EVERY + 8, 20, 22]
    assert probe.ends == [("r1", EVERY + 8)]
