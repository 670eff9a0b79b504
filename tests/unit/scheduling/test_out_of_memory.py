from scheduling.out_of_memory import discard_from, split, to_retry
from tests.unit.scheduling.scheduling_builders import a_request


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
