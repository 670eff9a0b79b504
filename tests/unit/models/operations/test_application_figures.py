"""Scores of predictions by application, with the arithmetic beside them."""

import pytest

from models.operations.application_figures import FEWEST_FOR_TAU, PredictedAnswer, scores_by_application


def answer(predicted: int, tokens: int, application: str = "chat", eta: float | None = None) -> PredictedAnswer:
    kept = None if eta is None else eta < 2
    return PredictedAnswer(application, tokens, predicted, predicted + 2, "length-1", eta, kept)


def test_errors_coverage_and_etas_are_those_of_each_application() -> None:
    chat, news = scores_by_application(
        [answer(10, 13, eta=1.0), answer(10, 9, eta=3.0), answer(10, 12), answer(5, 5, "news")]
    )
    assert (chat.application, chat.answers, news.answers) == ("chat", 3, 1)
    assert chat.rmse == pytest.approx(((9 + 1 + 4) / 3) ** 0.5)
    assert chat.coverage == pytest.approx(2 / 3)  # 13 is above 12
    assert (chat.eta_error_s, chat.eta_kept) == (2.0, 0.5)
    assert (news.rmse, news.eta_error_s) == (0.0, None)


def test_tau_needs_enough_answers() -> None:
    (few,) = scores_by_application([answer(n, n) for n in range(1, FEWEST_FOR_TAU)])
    (enough,) = scores_by_application([answer(n, n) for n in range(1, FEWEST_FOR_TAU + 1)])
    assert few.tau is None
    assert enough.tau == pytest.approx(1.0)
