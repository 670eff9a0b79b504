"""What holds for every policy whatever the workload; a new policy need only be named in `POLICIES`."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.kv_memory import KvMemory
from scheduling.policies.magnus import MagnusPolicy
from scheduling.policies.scls import SliceLevel
from scheduling.policies.sequence import SequenceScheduling
from scheduling.policy import Assignment, Policy
from scheduling.rank_correlation import RankCorrelation
from scheduling.sharing.policy_factory import POLICIES, PolicySettings, make_policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from scheduling.simulation.trace import Trace
from tests.unit.scheduling.scheduling_builders import SLOPED, a_memory, a_request, a_worker, examples

LIMIT = 60
SETTINGS = PolicySettings(max_prompt_tokens=100, max_output_tokens=LIMIT, wma_threshold=2_000, slice_tokens=16)
COSTS = EngineCosts(SLOPED, join_s=0.01, out_of_memory_s=0.5)
EVERY_POLICY = pytest.mark.parametrize("name", sorted(POLICIES))


@st.composite
def workloads(draw: st.DrawFn) -> list[Arrival]:
    """Requests in bursts and lulls, predicted right, too short or too long."""
    drawn = draw(
        st.lists(
            st.tuples(st.integers(0, 50), st.integers(1, 100), st.integers(1, LIMIT), st.integers(-30, 30)),
            min_size=1,
            max_size=25,
        )
    )
    arrivals = []
    for number, (moment, length, total, error) in enumerate(drawn):
        predicted = min(LIMIT, max(1, total + error))
        request = a_request(f"r{number}", moment * 0.25, length, predicted, min(LIMIT, predicted + 8), LIMIT)
        arrivals.append(Arrival(request, total))
    return arrivals


@st.composite
def fleets(draw: st.DrawFn) -> list[Instance]:
    """Workers of unequal memory and speed that come and go; the first stays and holds any request."""
    others = draw(
        st.lists(
            st.tuples(st.integers(40, 1_000), st.sampled_from([0.5, 1.0, 2.0]), st.integers(0, 5), st.integers(1, 9)),
            max_size=3,
        )
    )
    first = Instance("w0", a_memory(draw(st.integers(161, 1_000))), joins_at=draw(st.sampled_from([0.0, 2.0])))
    return [first] + [
        Instance(f"w{number}", a_memory(tokens), speed, joins_at=joins_at, leaves_at=joins_at + stays_s)
        for number, (tokens, speed, joins_at, stays_s) in enumerate(others, start=1)
    ]


def run(name: str, arrivals: Sequence[Arrival], fleet: Sequence[Instance], tick_s: float = 0.0) -> Trace:
    return simulate(make_policy(name, SETTINGS), arrivals, fleet, COSTS, seed=0, tick_s=tick_s)


@EVERY_POLICY
@examples(15)
@given(workloads(), fleets(), st.sampled_from([0.0, 0.5]))
def test_every_request_is_answered_exactly_once_and_never_before_it_came(
    name: str, arrivals: list[Arrival], fleet: list[Instance], tick_s: float
) -> None:
    trace = run(name, arrivals, fleet, tick_s)
    assert trace.failed == {}
    assert sorted(trace.answers) == sorted(arrival.request.id for arrival in arrivals)
    for arrival in arrivals:
        answer = trace.answers[arrival.request.id]
        assert arrival.request.arrived_at <= answer.started_at < answer.finished_at
        assert answer.generated == arrival.generation_length
    assert trace.tokens.valid == sum(arrival.generation_length for arrival in arrivals)


@EVERY_POLICY
@examples(8)
@given(workloads(), st.integers(161, 600), st.tuples(st.integers(0, 4), st.integers(1, 120)), st.booleans())
def test_with_right_predictions_nothing_runs_out_of_memory(
    name: str, arrivals: list[Arrival], tokens: int, windows: tuple[int, int], paged: bool
) -> None:
    known = [
        Arrival(
            a_request(a.request.id, a.request.arrived_at, a.request.length, a.generation_length, limit=LIMIT),
            a.generation_length,
        )
        for a in arrivals
    ]
    memory = KvMemory(4 * tokens, 4, paged, 1, None, *windows)
    trace = run(name, known, [Instance("w0", memory), Instance("w1", replace(memory, theta_bytes=8 * tokens))])
    assert trace.out_of_memory == 0
    assert len(trace.answers) == len(arrivals)


@EVERY_POLICY
def test_the_memory_behind_windows_is_for_more_rows(name: str) -> None:
    arrivals = [Arrival(a_request(f"r{n}", 0.0, 60, 20, limit=20), 20) for n in range(60)]
    everywhere = KvMemory(4 * 320, 4)  # four rows of 60 + 20 tokens
    windowed = replace(everywhere, windowed_bytes=3, window_tokens=20)  # nine rows, each of 20 + 3 * 20 / 4
    settings = replace(SETTINGS, max_prompt_tokens=60, max_output_tokens=20)
    before, after = (
        simulate(make_policy(name, settings), arrivals, [Instance("w0", memory)], COSTS, seed=0)
        for memory in (everywhere, windowed)
    )
    assert (before.out_of_memory, after.out_of_memory) == (0, 0)
    assert after.makespan_s < 0.8 * before.makespan_s


@EVERY_POLICY
@examples(5)
@given(workloads(), fleets())
def test_the_same_seed_gives_the_same_trace(name: str, arrivals: list[Arrival], fleet: list[Instance]) -> None:
    assert run(name, arrivals, fleet) == run(name, arrivals, fleet)


@EVERY_POLICY
@examples(5)
@given(workloads())
def test_the_queue_shows_each_request_once_and_forgets_what_is_discarded(name: str, arrivals: list[Arrival]) -> None:
    policy = make_policy(name, SETTINGS)
    for arrival in arrivals:
        policy.add(arrival.request, 20.0)
    shown = [request.id for batch in policy.waiting(20.0) for request in batch.requests]
    assert sorted(shown) == sorted(arrival.request.id for arrival in arrivals)
    assert len(policy) == len(arrivals)
    for place, request_id in enumerate(shown):
        policy.set_rank_correlation(RankCorrelation(0.5))
        assert policy.discard(request_id)
        assert not policy.discard(request_id)
        assert len(policy) == len(arrivals) - place - 1
    assert list(policy.waiting(20.0)) == []


@EVERY_POLICY
def test_a_long_request_does_not_starve_among_short_ones(name: str) -> None:
    # For 40 s short requests of 0.13 s come twenty a second; the long one takes 3.1 s. Shortest first would let it
    # wait until no more come. Every bound that a docstring states is shorter; the longest is SCLS's, of four rounds.
    arrivals = [Arrival(a_request("long", 0.001, 100, LIMIT, limit=LIMIT), LIMIT)]
    arrivals += [Arrival(a_request(f"s{number}", number / 20, 10, 2, limit=LIMIT), 2) for number in range(800)]
    trace = run(name, arrivals, [Instance("w0", a_memory(400))])
    assert len(trace.answers) == len(arrivals)
    assert trace.answers["long"].finished_at < 35.0


@EVERY_POLICY
def test_a_prompt_that_only_the_largest_worker_holds_goes_there_and_one_that_none_holds_fails_at_once(
    name: str,
) -> None:
    arrivals = [
        Arrival(a_request("just fits", 2.0, 199, 1, limit=1), 1),
        Arrival(a_request("too large", 2.0, 200, 1, limit=1), 1),
    ]
    arrivals += [Arrival(a_request(f"s{number}", number / 10, 10, 4, limit=LIMIT), 4) for number in range(300)]
    trace = run(name, arrivals, [Instance("small", a_memory(170)), Instance("large", a_memory(200))])
    assert trace.failed == {"too large": 2.0}
    assert len(trace.answers) == len(arrivals) - 1
    assert trace.answers["just fits"].finished_at < 25.0
    assert sum(batch.worker == "large" for batch in trace.batches if batch.started_at > 25.0)


@EVERY_POLICY
def test_without_an_idle_worker_nothing_is_assigned_and_what_came_waits(name: str) -> None:
    policy = make_policy(name, SETTINGS)
    assert policy.assign([a_worker()], 0.0) == []
    policy.add(a_request(), 0.0)
    assert policy.assign([], 0.0) == []
    assert len(policy) == 1


@pytest.mark.parametrize("make", [MagnusPolicy, SequenceScheduling, SliceLevel])
def test_a_policy_by_itself_waits_for_workers_too(make: Callable[[], Policy]) -> None:
    policy = make()
    policy.add(a_request(), 0.0)
    assert policy.assign([], 0.0) == []
    assert len(policy) == 1


@pytest.mark.parametrize("name", ["baton", "ccb", "fusion"])
def test_rows_that_did_not_fit_wait_again_and_a_lone_one_reserves_its_limit(name: str) -> None:
    policy = make_policy(name, SETTINGS)
    policy.out_of_memory(Assignment("w", (a_request("a"), a_request("b")), joins=True), 0.0)
    policy.out_of_memory(Assignment("w", (a_request("c"),), joins=True), 0.0)
    assert policy.assign([a_worker(busy=True)], 0.0) == []  # a batch runs to completion there
    served = [request for assignment in policy.assign([a_worker()], 0.0) for request in assignment.requests]
    assert {request.id: request.predicted for request in served} == {"a": 10, "b": 10, "c": 1024}
