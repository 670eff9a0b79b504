"""Answers that reached their limit are learned from as answers of that length, unless the limit is a client's whim."""

from learning.predictors.length_predictor import Outcome, Prompt
from learning.retraining.known_lengths import known_lengths


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


def test_where_every_answer_is_cut_off_the_limits_are_the_lengths():
    assert [o.generated_tokens for o in known_lengths([outcome(16, 16, censored=True)] * 3)] == [16] * 3
