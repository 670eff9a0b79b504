"""The number of threads follows the steps that the engine measures as it runs."""

from collections.abc import Callable

import pytest

from inference.local.costs.thread_trials import LATEST_S, ThreadTrials


class Machine:
    """Takes what `step_s` says for a step with each number of threads, from an instant on."""

    def __init__(self, chosen: int, most: int, tolerated: float = 1.05) -> None:
        self.threads, self.now, self.steps = chosen, 0.0, dict.fromkeys((1, 2, 4, 8), 0)
        self.trials = ThreadTrials(chosen, most, tolerated, self._set_threads)

    def run(self, seconds: float, step_s: Callable[[int], float], rows: Callable[[int], int] = lambda step: 8) -> int:
        ends_at, step = self.now + seconds, 0
        while self.now < ends_at:
            step += 1
            taken = step_s(self.threads)
            self.now += taken
            self.steps[self.threads] += 1
            self.trials.count(rows(step), taken, self.now)
        return self.trials.chosen

    def _set_threads(self, threads: int) -> None:
        self.threads = threads


QUIET = {1: 0.040, 2: 0.030, 4: 0.024, 8: 0.023}.__getitem__
BESIDE_A_BUSY_CORE = {1: 0.040, 2: 0.196, 4: 0.3, 8: 0.5}.__getitem__


@pytest.mark.parametrize(("step_s", "chosen"), [(QUIET, 4), (BESIDE_A_BUSY_CORE, 1), (lambda threads: 0.04, 1)])
@pytest.mark.parametrize("first", [1, 2, 4, 8])
def test_the_fewest_threads_with_about_the_shortest_step_are_found_from_any_number(first, step_s, chosen):
    assert Machine(first, most=8).run(200, step_s) == chosen


def test_threads_are_given_up_within_a_second_and_a_half_when_another_process_takes_a_core():
    machine = Machine(1, most=2)
    assert machine.run(30, QUIET) == 2
    assert machine.run(1.6, BESIDE_A_BUSY_CORE) == 1


def test_threads_are_taken_again_when_the_core_is_free_again():
    machine = Machine(2, most=2)
    assert machine.run(100, BESIDE_A_BUSY_CORE) == 1
    assert machine.run(LATEST_S + 5, QUIET) == 2


def test_trials_of_more_threads_cost_little_beside_a_busy_core():
    machine = Machine(1, most=2)
    machine.run(600, BESIDE_A_BUSY_CORE)
    assert machine.steps[2] < 15


def test_rows_that_join_and_leave_do_not_mislead_a_trial():
    machine = Machine(1, most=2)
    rows = iter(range(1, 10_000_000))
    assert machine.run(60, lambda threads: 0.001 * next(rows) + QUIET(threads), rows=lambda step: step) == 1
    assert machine.steps[2] < machine.steps[1] / 2  # a trial that no step can decide ends
    assert Machine(1, most=2).run(60, QUIET, rows=lambda step: 8 + step // 4 % 8) == 2


def test_the_number_of_threads_of_a_model_with_short_steps_and_of_one_thread_is_left_alone():
    short = Machine(1, most=2, tolerated=1.25)
    assert short.run(5, lambda threads: 0.002 / threads) == 1
    assert short.steps[2] == 0
    assert Machine(1, most=1).run(30, QUIET) == 1


def test_a_disturbed_step_changes_nothing():
    machine = Machine(2, most=2)
    steps = iter(range(1, 10_000_000))
    assert machine.run(100, lambda threads: QUIET(threads) * (10 if next(steps) % 50 == 0 else 1)) == 2
