"""The demo's arrivals and the examples that its predictor learns from."""

import itertools

import pytest

from cli.demo.demo_workload import poisson_arrivals, training_examples


def test_the_same_seed_gives_the_same_arrivals() -> None:
    assert poisson_arrivals(20, 5.0, seed=3) == poisson_arrivals(20, 5.0, seed=3)
    assert poisson_arrivals(20, 5.0, seed=3) != poisson_arrivals(20, 5.0, seed=4)


def test_the_rate_is_kept_on_average() -> None:
    arrivals = poisson_arrivals(2000, 50.0, seed=1)
    assert arrivals[-1].at_s == pytest.approx(2000 / 50.0, rel=0.1)
    assert all(before.at_s < after.at_s for before, after in itertools.pairwise(arrivals))


def test_a_faster_rate_changes_the_times_and_not_the_requests() -> None:
    slow, fast = poisson_arrivals(20, 5.0, seed=3), poisson_arrivals(20, 50.0, seed=3)
    assert [arrival.request for arrival in slow] == [arrival.request for arrival in fast]
    assert fast[-1].at_s == pytest.approx(slow[-1].at_s / 10)


def test_nothing_that_will_be_submitted_is_learned_from() -> None:
    arrivals = poisson_arrivals(300, 5.0, seed=0)
    examples = list(training_examples(1000, arrivals, seed=0))
    submitted = {(arrival.request.instruction, arrival.request.input) for arrival in arrivals}
    assert len(examples) > 900
    assert not submitted & {(example["instructions"], example["input"]) for example in examples}
