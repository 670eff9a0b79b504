"""Simulations in figures that add up by hand: with FLAT an iteration takes 0.1 s, prefill 1 ms a token."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from scheduling.policies.ccb import ConservativeContinuous
from scheduling.policies.magnus import MagnusPolicy
from scheduling.policies.vanilla import Vanilla
from scheduling.policy import Assignment, Mode, Policy, WaitingBatch, Worker
from scheduling.request import Request
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from scheduling.simulation.trace import Trace
from tests.unit.scheduling.scheduling_builders import FLAT, a_memory, a_request

COSTS = EngineCosts(FLAT)


def an_arrival(id: str, at: float = 0.0, length: int = 10, total: int = 10, predicted: int | None = None) -> Arrival:
    return Arrival(a_request(id, at, length, total if predicted is None else predicted), total)


def a_fleet(*tokens: int) -> list[Instance]:
    return [Instance(f"w{number}", a_memory(size)) for number, size in enumerate(tokens or (10_000,))]


def finished(trace: Trace) -> dict[str, float]:
    return {name: round(answer.finished_at, 6) for name, answer in sorted(trace.answers.items())}


class Scripted(Policy):
    """Makes the given assignments at given instants; only notes the requests that come back."""

    def __init__(self, mode: Mode, script: list[tuple[float, Assignment]]) -> None:
        self.mode = mode
        self.script = script
        self.came: list[tuple[float, Request]] = []
        self.beyond: list[Assignment] = []
        self.offered: list[tuple[float, Sequence[Worker]]] = []

    def __len__(self) -> int:
        return 0

    def add(self, request: Request, now: float) -> None:
        self.came.append((round(now, 6), request))

    def discard(self, request_id: str) -> bool:
        return False

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        self.offered.append((round(now, 6), workers))
        due = [assignment for at, assignment in self.script if at <= now]
        self.script = [(at, assignment) for at, assignment in self.script if at > now]
        return due

    def wake_at(self, now: float) -> float | None:
        return min((at for at, _ in self.script), default=None)

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        self.beyond.append(assignment)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        return ()


def test_a_batch_is_padded_to_the_longest_prompt_and_runs_to_the_longest_answer() -> None:
    arrivals = [an_arrival("a", length=30, total=4), an_arrival("b", length=10, total=10)]
    trace = simulate(Vanilla(1024, 1024), arrivals, a_fleet(), COSTS, seed=0)
    # prefill 2 · 30 tokens = 0.06 s, 10 iterations = 1 s; nobody returns before the end
    assert finished(trace) == {"a": 1.06, "b": 1.06}
    assert (trace.tokens.valid, trace.tokens.invalid, trace.tokens.pad) == (14, 6, 20)
    # reads: 2 · (10·30 + 55); useful: a 4·30 + 10, b 10·10 + 55
    assert (trace.tokens.reads, trace.tokens.useful_reads) == (710, 285)
    assert trace.wasted_share == pytest.approx(1 - 285 / 710)
    (batch,) = trace.batches
    assert (batch.length, batch.iterations, batch.ids) == (30, 10, ("a", "b"))
    assert trace.busy_s == {"w0": pytest.approx(1.06)}


def test_unfinished_rows_come_back_after_their_slice_with_what_they_have() -> None:
    arrivals = [an_arrival("a", total=4), an_arrival("b", total=10)]
    trace = simulate(Vanilla(1024, 1024, slice_tokens=5), arrivals, a_fleet(), COSTS, seed=0)
    # first slice: 0.02 + 0.5 s; the second prefills 10 + 5 tokens: 0.015 + 0.5 s
    assert finished(trace) == {"a": 0.52, "b": 1.035}
    assert trace.answers["b"].schedules == 2
    assert trace.tokens.valid == 14
    assert trace.early_returns(5) == 0.0


def test_a_batch_that_outgrows_the_memory_is_split_and_served() -> None:
    # 64 tokens: two rows of 10 + 10 fit, and four of 10 + 5 as predicted; in truth they outgrow it after 6 iterations.
    arrivals = [an_arrival(name, total=10, predicted=5) for name in "abcd"]
    costs = EngineCosts(FLAT, out_of_memory_s=2.0)
    trace = simulate(MagnusPolicy(), arrivals, a_fleet(64), costs, seed=0)
    # 4 rows: 0.04 + 6 · 0.1 + 2 = 2.64 s in vain; then twice 0.02 + 1 s
    assert finished(trace) == {"a": 3.66, "b": 3.66, "c": 4.68, "d": 4.68}
    assert trace.out_of_memory == 1
    assert (trace.tokens.valid, trace.tokens.invalid) == (40, 24)
    assert [batch.out_of_memory for batch in trace.batches] == [True, False, False]


def test_an_engine_with_headroom_forgives_a_little() -> None:
    arrivals = [an_arrival(name, total=10, predicted=5) for name in "abcd"]
    trace = simulate(MagnusPolicy(), arrivals, a_fleet(64), EngineCosts(FLAT, headroom=0.25), seed=0)
    assert trace.out_of_memory == 0  # 64 · 1.25 = 80 tokens hold four rows of 10 + 10


def test_a_request_too_large_for_every_worker_fails_and_the_rest_is_served() -> None:
    arrivals = [an_arrival("giant", length=90, total=20), an_arrival("small", at=1.0)]
    trace = simulate(MagnusPolicy(), arrivals, a_fleet(100, 50), COSTS, seed=0)
    assert list(trace.failed) == ["giant"]
    assert list(trace.answers) == ["small"]


def test_a_worker_twice_as_fast_takes_half_the_time() -> None:
    fleet = [Instance("fast", a_memory(10_000), speed=2.0)]
    trace = simulate(Vanilla(1024, 1024), [an_arrival("a")], fleet, COSTS, seed=0)
    assert finished(trace) == {"a": 0.505}


def test_policies_are_told_estimated_costs_not_the_true_ones() -> None:
    estimated = replace(FLAT, decode=(0.0, 0.0, 0.0, 1.0))
    fleet = [Instance("w", a_memory(10_000), estimated_costs=estimated)]
    trace = simulate(Vanilla(1024, 1024), [an_arrival("a")], fleet, COSTS, seed=0)
    assert (trace.batches[0].estimated_s, finished(trace)) == (10.01, {"a": 1.01})


def test_a_worker_that_leaves_gives_its_work_back_and_one_that_comes_takes_it() -> None:
    fleet = [Instance("old", a_memory(10_000), leaves_at=0.5), Instance("new", a_memory(10_000), joins_at=2.0)]
    trace = simulate(Vanilla(1024, 1024), [an_arrival("a")], fleet, COSTS, seed=0)
    assert finished(trace) == {"a": 3.01}
    assert trace.answers["a"].worker == "new"
    assert trace.completed_at == {"new": 3.01, "old": 0.0}


def test_rows_that_were_decoding_when_their_worker_left_start_again() -> None:
    fleet = [Instance("old", a_memory(10_000), leaves_at=0.56), Instance("new", a_memory(10_000), joins_at=2.0)]
    policy = ConservativeContinuous(1024, 1024, slots=2)
    trace = simulate(policy, [an_arrival("a"), an_arrival("b", at=0.55)], fleet, COSTS, seed=0)
    assert finished(trace) == {"a": 3.02, "b": 3.02}
    # five tokens of a were out by 0.51 s, and are generated again
    assert (trace.tokens.valid, trace.tokens.invalid) == (20, 5)


def test_a_planner_on_a_clock_decides_at_its_ticks_only() -> None:
    trace = simulate(Vanilla(1024, 1024), [an_arrival("a", at=0.31)], a_fleet(), COSTS, seed=0, tick_s=0.25)
    assert trace.answers["a"].started_at == 0.5


def test_a_simulation_can_stop_before_everything_is_served() -> None:
    arrivals = [an_arrival("a"), an_arrival("b", at=5.0)]
    trace = simulate(Vanilla(1024, 1024), arrivals, a_fleet(), COSTS, seed=0, until=4.0)
    assert list(trace.answers) == ["a"]


def test_with_jitter_chance_follows_the_seed() -> None:
    costs = EngineCosts(FLAT, jitter=0.2)

    def run(seed: int) -> dict[str, float]:
        arrivals = [an_arrival(str(number), at=number * 0.3) for number in range(10)]
        return finished(simulate(Vanilla(1024, 1024), arrivals, a_fleet(), costs, seed))

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_batches_queue_at_a_worker_in_the_order_given() -> None:
    first, second = a_request("a"), a_request("b")
    policy = Scripted("queue", [(0.0, Assignment("w0", (first,), estimated_s=1.5)), (0.5, Assignment("w0", (second,)))])
    trace = simulate(policy, [an_arrival("a"), an_arrival("b")], a_fleet(), COSTS, seed=0)
    assert finished(trace) == {"a": 1.01, "b": 2.02}
    at, (worker,) = policy.offered[1]
    assert (at, worker.queued, worker.busy_s, worker.idle) == (0.5, 1, 1.0, False)


def test_a_request_assigned_without_its_tokens_starts_anew() -> None:
    anew = replace(a_request("a"), generated=0)
    policy = Scripted("batch", [(0.0, Assignment("w0", (anew,), iteration_limit=4)), (2.0, Assignment("w0", (anew,)))])
    trace = simulate(policy, [an_arrival("a")], a_fleet(), COSTS, seed=0)
    assert finished(trace) == {"a": 3.01}
    assert policy.came[1] == (0.41, replace(anew, generated=4))
    assert (trace.tokens.valid, trace.tokens.invalid) == (10, 4)


def test_work_abandoned_in_every_state_comes_back() -> None:
    fleet = [Instance("w", a_memory(10_000), leaves_at=0.5)]
    script = [(0.0, Assignment("w", (a_request("running"),))), (0.1, Assignment("w", (a_request("queued"),)))]
    policy = Scripted("queue", script)
    simulate(policy, [an_arrival("running"), an_arrival("queued")], fleet, COSTS, seed=0)
    assert [(at, request.id) for at, request in policy.came[2:]] == [(0.5, "queued"), (0.5, "running")]


def test_figures_of_an_empty_simulation_are_zero() -> None:
    trace = simulate(Vanilla(1024, 1024), [], a_fleet(), COSTS, seed=0)
    figures = (trace.requests_per_s, trace.valid_tokens_per_s, trace.total_tokens_per_s, trace.batch_size_mean)
    assert figures == (0, 0, 0, 0)
    assert (trace.response_s.max, trace.wasted_share, trace.load_imbalance_s, trace.early_returns(1)) == (0, 0, 0, 0)


def test_the_papers_figures_of_a_small_simulation() -> None:
    arrivals = [an_arrival("a", total=10), an_arrival("b", at=0.5, total=20)]
    trace = simulate(Vanilla(1024, 1024), arrivals, a_fleet(), COSTS, seed=0)
    # a from 0 to 1.01 s; b from 1.01 to 1.01 + 0.01 + 2 = 3.02 s, a response time of 2.52 s
    assert trace.makespan_s == pytest.approx(3.02)
    assert trace.requests_per_s == pytest.approx(2 / 3.02)
    assert trace.valid_tokens_per_s == trace.total_tokens_per_s == pytest.approx(30 / 3.02)
    assert trace.response_s.mean == pytest.approx((1.01 + 2.52) / 2)
    assert trace.response_s.p50 == pytest.approx((1.01 + 2.52) / 2)
    assert trace.response_s.max == pytest.approx(2.52)
    assert trace.batch_size_mean == 1.0


@pytest.mark.parametrize("total", [0, 1025])
def test_an_arrival_that_could_not_be_is_refused(total: int) -> None:
    with pytest.raises(ValueError, match="cannot generate"):
        an_arrival("a", total=total, predicted=1)


@pytest.mark.parametrize("decode", [(0.0, 0.0, 0.0, 0.0), (-1e-6, 0.0, 0.0, 0.1)])
def test_an_engine_faster_than_time_is_refused(decode: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueError, match="must not fall"):
        EngineCosts(replace(FLAT, decode=decode))
