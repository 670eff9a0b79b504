""" """

import pytest

from scheduling.request import TIER_LEVELS, discard_from, split, to_retry
from tests.unit.scheduling.scheduling_builders import a_request


def test_what_was_generated_before_is_prefilled_and_no_longer_to_come() -> None:
    request = a_request(length=10, predicted=50, upper=80, generated=20)
    assert (request.prefill, request.remaining, request.remaining_upper) == (30, 30, 60)


def test_a_request_beyond_its_prediction_has_one_token_to_come_at_least() -> None:
    request = a_request(predicted=50, generated=70)
    assert (request.remaining, request.remaining_upper) == (1, 1)


def test_a_prediction_counts_no_further_than_the_limit() -> None:
    request = a_request(predicted=500, upper=900, limit=100)
    assert (request.remaining, request.remaining_upper) == (100, 100)


@pytest.mark.parametrize(("length", "limit", "generated"), [(0, 10, 0), (10, 0, 0), (10, 10, 10), (10, 10, -1)])
def test_impossible_requests_are_refused(length: int, limit: int, generated: int) -> None:
    with pytest.raises(ValueError, match="request r"):
        a_request(length=length, limit=limit, generated=generated)


def test_a_batch_is_split_evenly_with_similar_generation_lengths_together() -> None:
    requests = [a_request("a", predicted=90), a_request("b", predicted=10), a_request("c", predicted=80)]
    shorter, longer = split(requests)
    assert [request.id for request in shorter] == ["b"]
    assert [request.id for request in longer] == ["c", "a"]


def test_a_request_that_did_not_fit_alone_reserves_its_limit() -> None:
    ((request,),) = split([a_request(predicted=10, upper=20, limit=300)])
    assert (request.predicted, request.predicted_upper) == (300, 300)


def test_discarding_leaves_the_rest_of_a_half_and_no_empty_one() -> None:
    halves = [(a_request("a"), a_request("b")), (a_request("c"),)]
    assert discard_from(halves, "a")
    assert discard_from(halves, "c")
    assert not discard_from(halves, "d")
    assert halves == [(a_request("b"),)]


def test_joiners_that_did_not_fit_together_wait_again_as_they_were() -> None:
    requests = [a_request("a"), a_request("b")]
    assert to_retry(requests) == tuple(requests)


def test_a_joiner_that_did_not_fit_alone_reserves_its_limit() -> None:
    (request,) = to_retry([a_request(predicted=10, upper=20, limit=300)])
    assert (request.predicted, request.predicted_upper) == (300, 300)


def test_the_level_of_a_request_goes_by_its_tier_and_then_by_its_priority() -> None:
    tiers = [tier for tier in TIER_LEVELS if tier != "off_peak"]  # which is worth as much as flex
    each = [a_request(tier=tier, priority=priority) for tier in tiers for priority in (-100, 0, 100)]
    assert sorted(each, key=lambda request: request.level) == each
    assert len({request.level for request in each}) == len(each)


def test_only_the_two_lowest_tiers_are_background_work() -> None:
    each = {tier: a_request(tier=tier) for tier in TIER_LEVELS}
    assert [tier for tier, request in each.items() if request.background] == ["off_peak", "flex"]
    assert each["off_peak"].level == each["flex"].level
