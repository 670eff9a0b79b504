"""The figures of a run, and the windows of an engine's steps."""

import pytest

from inference.local.costs.cost_counters import MOST_STEPS, RunTally, StepLog
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from tests.unit.inference.tiny_models import AMPLE


def test_padding_is_what_a_prefill_computes_beyond_its_prompts():
    tally = RunTally()
    tally.count_prefill([3, 7, 5], joined=3, seconds=0.5)  # 3 * 7 - (3 + 7 + 5)
    tally.count_prefill([4], joined=1, seconds=0.25)
    figures = tally.figures()
    assert (figures.pad_tokens, figures.length, figures.prefill_s) == (6, 7, 0.75)
    assert tally.prefilled_tokens == 3 * 7 + 4


def test_tokens_of_finished_rows_are_invalid():
    tally = RunTally()
    tally.count_prefill([4, 4, 4], joined=3, seconds=0.1)
    tally.count_decode(rows=3, running=2, seconds=0.1)
    tally.count_decode(rows=3, running=1, seconds=0.1)
    figures = tally.figures()
    assert (figures.iterations, figures.size) == (3, 3)
    assert (figures.valid_tokens, figures.invalid_tokens) == (3 + 2 + 1, 0 + 1 + 2)


def test_right_guesses_are_valid_tokens_and_more_iterations_and_wrong_ones_are_neither():
    tally = RunTally()
    tally.count_prefill([4, 4], joined=2, seconds=0.1)
    tally.count_decode(rows=2, running=2, seconds=0.1, guessed=9, right=2)
    tally.count_decode(rows=2, running=1, seconds=0.1, guessed=3, right=3)
    figures = tally.figures()
    assert (figures.valid_tokens, figures.invalid_tokens) == (2 + 4 + 4, 1)
    assert figures.iterations == 1 + 2 + 4
    assert (figures.guessed_tokens, figures.right_guesses) == (12, 5)


def test_a_window_lasts_from_the_end_of_the_step_before_it() -> None:
    log = StepLog()
    log.count_prefill(2, 10, began_at=1.0, now=1.5)
    log.count_decode(2, 11, began_at=1.6, now=1.7)
    log.pause()
    prefill, decode = log.take()
    assert (prefill.seconds, prefill.prefilled_tokens, prefill.prefills) == (0.5, 20, 1)
    assert decode.seconds == pytest.approx(0.2)
    assert (decode.row_reads, decode.row_steps, decode.reads, decode.steps) == (22, 2, 11, 1)


def test_iterations_of_as_many_rows_share_a_window_until_it_is_full() -> None:
    log = StepLog()
    for n in range(MOST_STEPS + 1):
        log.count_decode(3, 5, began_at=n / 100, now=(n + 1) / 100)
    assert [window.steps for window in log.take()] == [MOST_STEPS]
    log.count_decode(4, 5, began_at=0.17, now=0.18)
    assert [(window.steps, window.row_steps) for window in log.take()] == [(1, 3)]


def test_an_iteration_that_gives_rows_two_tokens_counts_as_two() -> None:
    log = StepLog()
    log.count_decode(4, 10, began_at=0.0, now=0.3, tokens=2)
    log.pause()
    [window] = log.take()
    assert (window.steps, window.row_steps, window.reads, window.row_reads) == (2, 8, 20, 80)


def test_time_without_rows_is_in_no_window() -> None:
    log = StepLog()
    log.count_decode(1, 5, began_at=0.0, now=0.01)
    log.pause()
    log.count_decode(1, 5, began_at=9.0, now=9.01)
    log.pause()
    assert [window.seconds for window in log.take()] == [pytest.approx(0.01), pytest.approx(0.01)]


def test_the_engine_counts_each_of_its_prefills_and_iterations_once(endless) -> None:
    log = StepLog()
    engine = Engine(endless.loaded, AMPLE, EngineOptions(step_log=log))
    sequences = [known.sequence(str(n)) for n, known in enumerate(endless.pool[:3])]
    results, figures = engine.run(sequences)
    windows = log.take()
    length = max(sequence.length for sequence in sequences)
    assert sum(window.prefilled_tokens for window in windows) == 3 * length
    assert sum(window.prefills + window.steps for window in windows) == figures.iterations
    # every row is computed until the longest one ends, each step with one more token in the cache
    steps = figures.iterations - 1
    assert sum(window.row_steps for window in windows) == 3 * steps
    assert sum(window.reads for window in windows) == sum(length + step for step in range(1, steps + 1))
    assert all(window.seconds > 0 for window in windows)
    engine.run(sequences[:1])
    assert sum(window.row_steps for window in log.take()) == len(results[0].generated_ids) - 1
