from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from scheduling.costs import ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.length_distributions import drawn_length, drawn_lengths, van_der_corput
from scheduling.policies.scls import MemoryRule, SliceLevel
from scheduling.policies.slice_length import (
    CHOSEN_EVERY_S,
    FEWEST,
    PUBLISHED_SLICE,
    SLICES,
    ChosenSlice,
    cheapest_slice,
)
from scheduling.request import Request
from tests.unit.scheduling.scheduling_builders import SLOPED, a_request, a_worker, examples

# a prefill takes 2 s and more, an iteration 0.1 s
DEAR = ServingCurves(prefill=(0.01, 0.0, 0.0, 2.0), decode=(0.0, 0.0, 0.0, 0.1))
ROWS = partial(MemoryRule().largest_size, KvMemory(theta_bytes=400, delta_bytes=1))


def requests_of(tokens: int, count: int = FEWEST, first: int = 0, spread: int = 1) -> list[Request]:
    return [
        a_request(f"{n:03}", at=float(n), length=20, predicted=tokens, upper=spread * tokens)
        for n in range(first, first + count)
    ]


def test_answers_of_one_length_get_a_slice_that_they_fill_if_prefills_are_dear() -> None:
    assert cheapest_slice(requests_of(32), PUBLISHED_SLICE, DEAR, ROWS) == 32
    assert cheapest_slice(requests_of(128), 16, DEAR, ROWS) >= 64


def test_cheap_prefills_make_slices_shorter_because_short_ones_leave_memory_for_more_rows() -> None:
    assert cheapest_slice(requests_of(128), PUBLISHED_SLICE, SLOPED, ROWS) < 128


@examples(20)
@given(st.integers(1, 400), st.sampled_from(SLICES))
def test_a_slice_that_gains_next_to_nothing_changes_nothing(tokens: int, present: int) -> None:
    requests = requests_of(tokens)
    best = cheapest_slice(requests, present, SLOPED, ROWS)
    assert cheapest_slice(requests, best, SLOPED, ROWS) == best


def test_the_published_slice_holds_until_some_requests_were_seen_and_then_follows_their_lengths() -> None:
    choice = ChosenSlice()
    for request in requests_of(16, FEWEST - 1):
        choice.see(request)
    choice.see(a_request("comes back", predicted=10, generated=5))
    assert choice.choose(DEAR, ROWS, 0.0) == PUBLISHED_SLICE
    choice.see(requests_of(16)[-1])
    assert choice.choose(DEAR, ROWS, 0.0) == 16
    for request in requests_of(200, 90, first=100):
        choice.see(request)
    longer = choice.choose(DEAR, ROWS, 1.0)  # their number has doubled
    assert longer > 16
    assert choice.choose(DEAR, ROWS, CHOSEN_EVERY_S / 2) == longer
    assert choice.choose(DEAR, ROWS, 2 * CHOSEN_EVERY_S) > 16


def test_scls_without_a_slice_cuts_its_batches_to_the_lengths_that_it_sees() -> None:
    policy = SliceLevel(None)
    for request in requests_of(16):
        policy.add(request, 0.0)
    assert {one.iteration_limit for one in policy.assign([a_worker(tokens=400, costs=DEAR)], 0.0)} == {16}


def test_drawn_lengths_spread_as_predictions_say_and_stay_within_limits() -> None:
    drawn = drawn_lengths(requests_of(100, 63, spread=2))
    assert sorted(drawn.values())[31] == 100
    assert 0.05 < sum(tokens > 200 for tokens in drawn.values()) / 63 < 0.15
    assert drawn_length(a_request(predicted=90, upper=100, limit=100, generated=80), 0.999) == 20
    assert [van_der_corput(number) for number in (1, 2, 3, 4)] == [0.5, 0.25, 0.75, 0.125]
