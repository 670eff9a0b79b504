from scheduling.policy import batch_shape, waiting_batch
from tests.unit.scheduling.scheduling_builders import FLAT, a_request

SHORT, LONG = a_request("short", at=2.0, length=10, predicted=50), a_request("long", at=4.0, length=30, predicted=20)


def test_a_batch_is_as_long_as_its_longest_prompt_and_its_longest_predicted_answer() -> None:
    assert batch_shape([SHORT, LONG]) == (2, 30, 50)


def test_an_iteration_limit_cuts_the_generation_length() -> None:
    assert batch_shape([SHORT, LONG], iteration_limit=16) == (2, 30, 16)
    assert batch_shape([SHORT, LONG], iteration_limit=64) == (2, 30, 50)


def test_the_response_ratio_counts_the_wait_of_the_earliest_request() -> None:
    batch = waiting_batch([SHORT, LONG], FLAT, now=12.12)
    assert batch.estimated_s == 5.06  # prefill 2 · 30 ms, 50 iterations of 100 ms
    assert batch.response_ratio == 1 + (12.12 - 2.0) / 5.06


def test_without_costs_nothing_is_estimated() -> None:
    batch = waiting_batch([SHORT], None, now=12.0)
    assert (batch.estimated_s, batch.response_ratio) == (0.0, 1.0)
