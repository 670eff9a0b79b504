from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from scheduling.adaptive_batching import AdaptiveBatcher
from scheduling.costs import ServingTime
from scheduling.policies.magnus import MagnusPolicy
from scheduling.policies.wma_threshold import (
    CHOSEN_EVERY_S,
    FEWEST,
    LEAST_GAIN,
    MOST_SLOWDOWN,
    PUBLISHED_THRESHOLD,
    VALID_SHARE,
    ChosenThreshold,
    PackedTime,
    cheapest_threshold,
    chosen,
)
from scheduling.request import Request
from tests.unit.scheduling.scheduling_builders import FLAT, SLOPED, a_request, a_worker, examples

CAPACITY = 2_000


def requests_of(generated: Sequence[int]) -> list[Request]:
    """Prompts of 20 tokens whose predictions are exact."""
    return [
        a_request(f"{n:03}", at=float(n), length=20, predicted=one, upper=one, limit=512)
        for n, one in enumerate(generated)
    ]


def seconds_under(threshold: int, requests: Sequence[Request], costs: ServingTime) -> float:
    """Of all batches that Algorithm 1 makes of them, each as long as its longest answer."""
    batcher = AdaptiveBatcher(threshold)
    batcher.set_limits(CAPACITY, None)
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
    chosen = cheapest_threshold(requests, PUBLISHED_THRESHOLD, SLOPED, CAPACITY, None)
    least = (1 - LEAST_GAIN) * seconds_under(chosen, requests, SLOPED) / (1 + MOST_SLOWDOWN)
    assert seconds_under(2**power, requests, SLOPED) >= least - 1e-9


def test_short_answers_of_two_lengths_are_packed_apart_where_the_published_threshold_mixes_them() -> None:
    requests = requests_of([5, 100] * 40)
    assert seconds_under(PUBLISHED_THRESHOLD, requests, FLAT) == seconds_under(10**9, requests, FLAT)
    chosen = cheapest_threshold(requests, PUBLISHED_THRESHOLD, FLAT, CAPACITY, None)
    assert chosen < PUBLISHED_THRESHOLD
    assert seconds_under(chosen, requests, FLAT) < 0.8 * seconds_under(PUBLISHED_THRESHOLD, requests, FLAT)


def test_a_gain_of_less_than_two_percent_changes_nothing() -> None:
    requests = requests_of([50] * 40)
    assert cheapest_threshold(requests, 77, FLAT, CAPACITY, None) == 77


def test_a_slower_threshold_is_preferred_if_it_reaches_the_goal_of_valid_tokens_at_a_bearable_price() -> None:
    fast, valid, pure = PackedTime(9000, 10.0, 0.5), PackedTime(900, 12.0, 0.75), PackedTime(90, 20.0, 0.99)
    assert chosen([fast, valid, pure]) == valid
    assert chosen([fast, pure]) == fast
    assert chosen([fast, PackedTime(1, 10.0, VALID_SHARE)]).threshold == 1


@examples(30)
@given(
    st.lists(
        st.builds(PackedTime, st.integers(1, 10**6), st.floats(0.1, 100.0), st.floats(0.01, 1.0)),
        min_size=1,
        max_size=12,
    )
)
def test_the_chosen_threshold_is_never_slower_than_what_valid_tokens_are_worth(tried: list[PackedTime]) -> None:
    best = chosen(tried)
    least_s = min(one.seconds for one in tried)
    assert best.seconds <= (1 + MOST_SLOWDOWN) * least_s
    assert best.seconds == least_s or best.valid_share >= VALID_SHARE


def test_while_few_requests_were_seen_it_is_chosen_again_whenever_their_number_has_doubled() -> None:
    threshold = ChosenThreshold()
    for request in requests_of([100, 500] * (FEWEST // 2)):
        threshold.see(request)
    first = threshold.choose(FLAT, CAPACITY, None, 0.0)
    for request in requests_of([5, 60] * (FEWEST // 2)):
        threshold.see(request)
    assert threshold.choose(FLAT, CAPACITY, None, 1.0) != first


def test_the_published_threshold_holds_until_some_requests_were_seen() -> None:
    threshold = ChosenThreshold()
    requests = requests_of([5, 100] * FEWEST)
    for request in requests[: FEWEST - 1]:
        threshold.see(request)
    assert threshold.choose(FLAT, CAPACITY, None, 0.0) == PUBLISHED_THRESHOLD
    threshold.see(requests[FEWEST - 1])
    assert threshold.choose(FLAT, CAPACITY, None, 0.0) < PUBLISHED_THRESHOLD


def test_it_follows_the_lengths_but_not_more_often_than_its_interval() -> None:
    threshold = ChosenThreshold()
    for request in requests_of([5, 100] * 128):
        threshold.see(request)
    first = threshold.choose(FLAT, CAPACITY, None, 0.0)
    for request in requests_of([100, 500] * 128):
        threshold.see(request)
    assert threshold.choose(FLAT, CAPACITY, None, CHOSEN_EVERY_S - 1) == first
    assert threshold.choose(FLAT, CAPACITY, None, CHOSEN_EVERY_S) > first


def test_uncertain_predictions_are_packed_less_strictly_than_certain_ones() -> None:
    certain = requests_of([5, 100] * 40)
    uncertain = [
        a_request(one.id, one.arrived_at, length=20, predicted=one.predicted, upper=20 * one.predicted, limit=512)
        for one in certain
    ]
    strict, lax = (cheapest_threshold(some, 16, FLAT, CAPACITY, None) for some in (certain, uncertain))
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
