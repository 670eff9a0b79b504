"""What a worker makes of its steps' windows, and of the samples of a server's iterations."""

from dataclasses import replace

import pytest

from inference.remote.stream_figures import StepSample
from learning.step_costs import StepWindow
from tasks.serving.costs.learned_costs import FIT_EVERY_S, LearnedCosts, UnseenSamples

# an iteration takes 20 ms, 2 ms for each row and 10 µs for each cached token; a prefilled token 1 ms
SHAPES = ((1, 50, 0), (4, 100, 40), (16, 80, 200), (32, 300, 100), (8, 400, 0), (2, 900, 10)) * 6
SAMPLES = [
    StepSample(
        10 * (0.02 + rows * (0.002 + 1e-5 * cached)) + 0.001 * prefilled, 10.0, float(rows), float(cached), prefilled
    )
    for rows, cached, prefilled in SHAPES
]


def test_the_costs_behind_a_servers_samples_are_found_again() -> None:
    unseen = UnseenSamples()
    learned = LearnedCosts(lambda now: unseen.windows(SAMPLES, now)).curves(1.0)
    assert learned is not None
    assert learned.curves.prefill[0] == pytest.approx(0.001, rel=0.05)
    assert learned.curves.decode == pytest.approx([1e-5, 0.002, 0, 0.02], rel=0.05, abs=1e-5)


def test_each_sample_is_seen_once() -> None:
    unseen = UnseenSamples()
    assert len(unseen.windows(SAMPLES[:4], 1.0)) == 4
    assert not unseen.windows(SAMPLES[:4], 2.0)
    assert len(unseen.windows(SAMPLES[2:6], 3.0)) == 2
    assert len(unseen.windows(SAMPLES[10:13], 4.0)) == 3  # the last one seen has left
    assert not unseen.windows([], 5.0)


def test_nothing_is_fitted_again_before_its_time() -> None:
    batches = iter([SAMPLES, [replace(sample, seconds=2 * sample.seconds) for sample in SAMPLES * 2]])
    unseen = UnseenSamples()
    costs = LearnedCosts(lambda now: unseen.windows(next(batches), now))
    first = costs.curves(1.0)
    assert costs.curves(1.0 + 0.9 * FIT_EVERY_S) == first
    later = costs.curves(1.0 + FIT_EVERY_S)
    assert first is not None
    assert later is not None
    assert later.version == 2
    assert later.curves.decode[3] == pytest.approx(2 * first.curves.decode[3], rel=0.1)


def test_a_worker_without_steps_has_learned_nothing() -> None:
    none: list[StepWindow] = []
    assert LearnedCosts(lambda now: none).curves(1.0) is None
