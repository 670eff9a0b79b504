import math
import random
from collections.abc import Sequence
from functools import partial

from hypothesis import example, given
from hypothesis import strategies as st

from learning.estimators.cost_curves import fit_curves
from scheduling.adaptive_batching import AdaptiveBatcher
from scheduling.chosen_parameters import (
    CHOSEN_EVERY_S,
    LEAST_GAIN,
    LEAST_SLICE_REQUESTS,
    LEAST_THRESHOLD_REQUESTS,
    MOST_SLOWDOWN,
    PUBLISHED_SLICE,
    PUBLISHED_THRESHOLD,
    SLICES,
    VALID_SHARE,
    PackedTime,
    best_valid,
    cheapest_slice,
    cheapest_threshold,
    chosen_slice,
    chosen_threshold,
)
from scheduling.costs import ServingCurves, ServingTime
from scheduling.kv_memory import KvMemory
from scheduling.length_distributions import drawn_length, drawn_lengths, van_der_corput
from scheduling.policies.magnus import MagnusPolicy
from scheduling.policies.scls import MemoryRule, SliceLevel
from scheduling.policies.vanilla import Vanilla
from scheduling.policy import Policy
from scheduling.request import Request
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from tests.unit.scheduling.scheduling_builders import FLAT, SLOPED, a_request, a_worker, add_all, examples

CAPACITY = 2_000
MEMORY = KvMemory(CAPACITY, 1)
CHEAPEST_THRESHOLD = partial(cheapest_threshold, costs=FLAT, memory=MEMORY, max_size=None)


def requests_of(generated: Sequence[int]) -> list[Request]:
    """Prompts of 20 tokens whose predictions are exact."""
    return [
        a_request(f"{n:03}", at=float(n), length=20, predicted=one, upper=one, limit=512)
        for n, one in enumerate(generated)
    ]


def seconds_under(threshold: int, requests: Sequence[Request], costs: ServingTime) -> float:
    """Serving time of all batches that Algorithm 1 makes of the requests, each as long as its longest answer."""
    batcher = AdaptiveBatcher(threshold)
    batcher.set_limits(MEMORY, None)
    for request in requests:
        batcher.add(request)
    return sum(
        costs.serve_s(len(batch.requests), batch.length, batch.generation_length) for batch in batcher.batches.values()
    )


@examples(40)
@given(st.lists(st.integers(1, 512), min_size=1, max_size=60), st.integers(1, 18))
def test_no_power_of_two_serves_exactly_predicted_requests_faster_than_more_valid_tokens_are_worth(
    generated: list[int], power: int
) -> None:
    requests = requests_of(generated)
    chosen = cheapest_threshold(requests, PUBLISHED_THRESHOLD, SLOPED, MEMORY, None)
    least = (1 - LEAST_GAIN) * seconds_under(chosen, requests, SLOPED) / (1 + MOST_SLOWDOWN)
    assert seconds_under(2**power, requests, SLOPED) >= least - 1e-9


def test_short_answers_of_two_lengths_are_packed_apart_where_the_published_threshold_mixes_them() -> None:
    requests = requests_of([5, 100] * 40)
    assert seconds_under(PUBLISHED_THRESHOLD, requests, FLAT) == seconds_under(10**9, requests, FLAT)
    chosen = cheapest_threshold(requests, PUBLISHED_THRESHOLD, FLAT, MEMORY, None)
    assert chosen < PUBLISHED_THRESHOLD
    assert seconds_under(chosen, requests, FLAT) < 0.8 * seconds_under(PUBLISHED_THRESHOLD, requests, FLAT)


def test_a_gain_of_less_than_two_percent_changes_nothing() -> None:
    requests = requests_of([50] * 40)
    assert cheapest_threshold(requests, 77, FLAT, MEMORY, None) == 77


def test_a_slower_threshold_is_preferred_if_it_reaches_the_goal_of_valid_tokens_at_a_bearable_price() -> None:
    fast, valid, pure = PackedTime(9000, 10.0, 0.5), PackedTime(900, 12.0, 0.75), PackedTime(90, 20.0, 0.99)
    assert best_valid([fast, valid, pure]) == valid
    assert best_valid([fast, pure]) == fast
    assert best_valid([fast, PackedTime(1, 10.0, VALID_SHARE)]).threshold == 1


@examples(30)
@given(
    st.lists(
        st.builds(PackedTime, st.integers(1, 10**6), st.floats(0.1, 100.0), st.floats(0.01, 1.0)),
        min_size=1,
        max_size=12,
    )
)
def test_the_chosen_threshold_is_never_slower_than_what_valid_tokens_are_worth(tried: list[PackedTime]) -> None:
    best = best_valid(tried)
    least_s = min(one.seconds for one in tried)
    assert best.seconds <= (1 + MOST_SLOWDOWN) * least_s
    assert best.seconds == least_s or best.valid_share >= VALID_SHARE


def test_the_published_threshold_holds_until_some_requests_were_seen() -> None:
    threshold = chosen_threshold()
    requests = requests_of([5, 100] * LEAST_THRESHOLD_REQUESTS)
    for request in requests[: LEAST_THRESHOLD_REQUESTS - 1]:
        threshold.record(request)
    assert threshold.choose(CHEAPEST_THRESHOLD, 0.0) == PUBLISHED_THRESHOLD
    threshold.record(requests[LEAST_THRESHOLD_REQUESTS - 1])
    assert threshold.choose(CHEAPEST_THRESHOLD, 0.0) < PUBLISHED_THRESHOLD


def test_uncertain_predictions_are_packed_less_strictly_than_certain_ones() -> None:
    certain = requests_of([5, 100] * 40)
    uncertain = [
        a_request(one.id, one.arrived_at, length=20, predicted=one.predicted, upper=20 * one.predicted, limit=512)
        for one in certain
    ]
    strict, lax = (cheapest_threshold(some, 16, FLAT, MEMORY, None) for some in (certain, uncertain))
    assert strict <= lax


def test_a_new_threshold_packs_the_waiting_requests_anew_except_sealed_ones() -> None:
    batcher = AdaptiveBatcher(PUBLISHED_THRESHOLD)
    requests = requests_of([5, 100, 5, 100])
    sealed = batcher.open_batch(requests[:2], sealed=True)
    for request in requests[2:]:
        batcher.add(request)
    batcher.set_threshold(100)
    assert sorted(list(batch.requests) for batch in batcher.batches.values()) == [["000", "001"], ["002"], ["003"]]
    assert sealed.number in batcher.batches
    before = set(batcher.batches)
    batcher.set_threshold(100)
    assert set(batcher.batches) == before  # nothing is packed anew for the same threshold


def test_magnus_without_a_threshold_separates_what_it_mixes_under_the_published_one() -> None:
    sizes = {}
    for threshold in (None, PUBLISHED_THRESHOLD):
        policy = MagnusPolicy(threshold)
        for request in requests_of([5, 100] * 20):
            policy.add(request, 0.0)
        (assignment,) = policy.assign([a_worker(tokens=CAPACITY)], 0.0)
        sizes[threshold] = {request.predicted for request in assignment.requests}
    assert sizes == {None: {5}, PUBLISHED_THRESHOLD: {5, 100}}


# Learned on a busy machine from batches of one request: without a fixed cost, batches seem to save nothing.
COLLAPSED = ServingCurves((0.000312, 0.0076, 0.0, 0.0), (4.16e-05, 0.00669, 0.0, 0.0))
ROWS_OF_EQ_1 = 7


def mixed_requests(count: int) -> list[Arrival]:
    """Answers of 20 to 900 tokens from prompts of a similar length, predicted within 20 %, all within a second."""
    rng = random.Random(0)
    made = []
    for number in range(count):
        tokens = round(20 * 45 ** rng.random())
        median = round(tokens * rng.uniform(0.8, 1.2))
        request = a_request(f"{number:03}", number / count, length=tokens, predicted=median, upper=median * 5 // 4)
        made.append(Arrival(request, tokens))
    return made


def served(policy: Policy, believed: ServingCurves | None, count: int) -> float:
    """Requests a second on a V100 under a policy that is told these costs; None: the true ones."""
    worker = Instance("w", KvMemory(ROWS_OF_EQ_1 * 2048, 1), estimated_costs=believed)
    return simulate(policy, mixed_requests(count), [worker], EngineCosts(SLOPED), 0).requests_per_s


def test_costs_without_a_fixed_part_never_make_batches_smaller_than_those_of_equation_1() -> None:
    policy = MagnusPolicy(None)
    add_all(policy, [one.request for one in mixed_requests(200)])
    worker, sizes = a_worker(tokens=ROWS_OF_EQ_1 * 2048, costs=COLLAPSED), list[int]()
    while len(policy):
        sizes += [len(assignment.requests) for assignment in policy.assign([worker], 1.0)]
    assert sum(sizes) / len(sizes) >= ROWS_OF_EQ_1 - 0.5  # the last batches are not full


@examples(3)
@given(st.lists(st.floats(0.0, 3.0), min_size=12, max_size=12))
@example([0.0, 1.5, 3.0] * 4)
def test_whatever_a_profile_on_a_loaded_machine_measures_costs_no_policy_its_gain_over_vs(loads: list[float]) -> None:
    shapes = [(size, length) for size in (1, 4, 16) for length in (16, 128)]
    slowed = [math.exp(load) for load in loads]
    believed = fit_curves(
        [(*shape, SLOPED.prefill_s(*shape) * times) for shape, times in zip(shapes, slowed[:6], strict=True)],
        [(*shape, SLOPED.decode_step_s(*shape) * times) for shape, times in zip(shapes, slowed[6:], strict=True)],
    )
    least = 0.95 * served(Vanilla(1024, 1024), None, 64)
    for costs in (believed, COLLAPSED):
        assert served(MagnusPolicy(None), costs, 64) >= least
    assert served(SliceLevel(None), believed, 64) >= least


@examples(20)
@given(st.integers(1, 400), st.sampled_from(SLICES))
def test_no_costs_make_slices_shorter_than_half_of_the_mean_answer(tokens: int, present: int) -> None:
    least = min(PUBLISHED_SLICE, tokens / 2)
    free_prefills = ServingCurves((0.0, 0.0, 0.0, 0.0), (0.01, 0.01, 0.01, 0.0))
    assert cheapest_slice(requests_with(tokens), present, free_prefills, ROWS) >= least


# a prefill takes 2 s and more, an iteration 0.1 s
DEAR = ServingCurves(prefill=(0.01, 0.0, 0.0, 2.0), decode=(0.0, 0.0, 0.0, 0.1))
ROWS = partial(MemoryRule().largest_size, KvMemory(theta_bytes=400, delta_bytes=1))
CHEAPEST_SLICE = partial(cheapest_slice, costs=DEAR, largest_size=ROWS)


def requests_with(tokens: int, count: int = LEAST_SLICE_REQUESTS, first: int = 0, spread: int = 1) -> list[Request]:
    return [
        a_request(f"{n:03}", at=float(n), length=20, predicted=tokens, upper=spread * tokens)
        for n in range(first, first + count)
    ]


def test_answers_of_one_length_get_a_slice_that_they_fill_if_prefills_are_dear() -> None:
    assert cheapest_slice(requests_with(32), PUBLISHED_SLICE, DEAR, ROWS) == 32
    assert cheapest_slice(requests_with(128), 16, DEAR, ROWS) >= 64


def test_cheap_prefills_make_slices_shorter_because_short_ones_leave_memory_for_more_rows() -> None:
    assert cheapest_slice(requests_with(128), PUBLISHED_SLICE, SLOPED, ROWS) < 128


@examples(20)
@given(st.integers(1, 400), st.sampled_from(SLICES))
def test_a_slice_that_gains_next_to_nothing_changes_nothing(tokens: int, present: int) -> None:
    requests = requests_with(tokens)
    best = cheapest_slice(requests, present, SLOPED, ROWS)
    assert cheapest_slice(requests, best, SLOPED, ROWS) == best


def test_the_published_slice_holds_until_some_requests_were_seen_and_then_follows_their_lengths() -> None:
    choice = chosen_slice()
    for request in requests_with(16, LEAST_SLICE_REQUESTS - 1):
        choice.record(request)
    assert choice.choose(CHEAPEST_SLICE, 0.0) == PUBLISHED_SLICE
    choice.record(requests_with(16)[-1])
    assert choice.choose(CHEAPEST_SLICE, 0.0) == 16
    for request in requests_with(200, 90, first=100):
        choice.record(request)
    longer = choice.choose(CHEAPEST_SLICE, 1.0)  # the number of requests has doubled since the last choice
    assert longer > 16
    assert choice.choose(CHEAPEST_SLICE, CHOSEN_EVERY_S / 2) == longer
    assert choice.choose(CHEAPEST_SLICE, 2 * CHOSEN_EVERY_S) > 16


def test_scls_without_a_slice_cuts_its_batches_to_the_lengths_that_it_sees() -> None:
    policy = SliceLevel(None)
    for request in requests_with(16):
        policy.add(request, 0.0)
    assert {one.iteration_limit for one in policy.assign([a_worker(tokens=400, costs=DEAR)], 0.0)} == {16}


def test_a_request_that_comes_back_from_a_slice_does_not_count_for_the_choice() -> None:
    policy = SliceLevel(None)
    for request in requests_with(16, LEAST_SLICE_REQUESTS - 1):
        policy.add(request, 0.0)
    policy.add(a_request("comes back", predicted=10, generated=5), 0.0)
    assignments = policy.assign([a_worker(tokens=400, costs=DEAR)], 0.0)
    assert {one.iteration_limit for one in assignments} == {PUBLISHED_SLICE}


def test_drawn_lengths_spread_as_predictions_say_and_stay_within_limits() -> None:
    drawn = drawn_lengths(requests_with(100, 63, spread=2))
    assert sorted(drawn.values())[31] == 100
    assert 0.05 < sum(tokens > 200 for tokens in drawn.values()) / 63 < 0.15
    assert drawn_length(a_request(predicted=90, upper=100, limit=100, generated=80), 0.999) == 20
    assert [van_der_corput(number) for number in (1, 2, 3, 4)] == [0.5, 0.25, 0.75, 0.125]
