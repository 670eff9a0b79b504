"""What a refit is trained on, and what is held out."""

import numpy as np
import pytest

from learning.features.length_predictor import Outcome, Prompt
from learning.retraining.training_set import (
    LENGTH_RULE,
    SERVING_RULE,
    TrainingSetBounds,
    is_held_out,
    known_lengths,
    select_entries,
)
from tests.unit.learning.made_up_lengths import outcomes, prompt


def test_one_text_in_five_is_held_out_whatever_its_application() -> None:
    held = [is_held_out(prompt("a", 5, f"text {i}")) for i in range(2000)]
    assert np.mean(held) == pytest.approx(0.2, abs=0.03)
    assert held == [is_held_out(prompt("b", 9, f"text {i}")) for i in range(2000)]


def test_old_entries_go_by_age_and_count_but_rare_applications_keep_theirs() -> None:
    log = outcomes(1000, application="common") + outcomes(20, application="rare")
    kept = select_entries(log, TrainingSetBounds(100, 500.0), 1000.0, lambda o: o.prompt.application)
    by_application = [o.prompt.application for o in kept]
    assert by_application.count("rare") == 0  # all older than 500 s
    kept = select_entries(log, TrainingSetBounds(100, 5000.0), 1000.0, lambda o: o.prompt.application)
    by_application = [o.prompt.application for o in kept]
    assert (by_application.count("rare"), by_application.count("common")) == (20, 80)
    assert min(o.at for o in kept if o.prompt.application == "common") == 920  # the newest of 0..999


def test_a_group_above_its_share_fills_half_of_it_with_preferred_entries() -> None:
    kept = select_entries(outcomes(1000), TrainingSetBounds(100), 1000.0, lambda _: "one", lambda o: o.at < 100)
    assert sum(o.at < 100 for o in kept) == 50
    assert sum(o.at >= 950 for o in kept) == 50


def outcome(generated: int, limit: int = 100, *, censored: bool = False, application: str = "a") -> Outcome:
    return Outcome(Prompt(application, "do", "it", 1, 2, limit), generated, censored)


def test_an_answer_that_reached_its_limit_counts_with_that_length():
    known = known_lengths([outcome(40), outcome(100, censored=True)])
    assert [(o.generated_tokens, o.censored) for o in known] == [(40, False), (100, False)]


def test_an_answer_that_was_cancelled_or_failed_teaches_nothing():
    assert known_lengths([outcome(40), outcome(60, censored=True)]) == [outcome(40)]


def test_a_limit_that_complete_answers_often_exceed_teaches_nothing():
    long = [outcome(80) for _ in range(10)]
    assert known_lengths([outcome(16, 16, censored=True), *long]) == long


def test_the_limits_of_one_application_are_not_judged_by_the_answers_of_another():
    known = known_lengths([outcome(16, 16, censored=True), outcome(80, application="b")])
    assert [o.generated_tokens for o in known] == [16, 80]


def test_rules_shrink_for_a_service_of_small_numbers_and_stay_at_the_papers_scale() -> None:
    assert LENGTH_RULE.scaled_to([200, 400]) == LENGTH_RULE
    assert LENGTH_RULE.scaled_to([10, 20]).absolute == pytest.approx(3)  # 2 · 10 % of 15
    assert SERVING_RULE.scaled_to([0.1]).absolute == pytest.approx(0.04)
    assert LENGTH_RULE.scaled_to([]) == LENGTH_RULE
