import pytest

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
