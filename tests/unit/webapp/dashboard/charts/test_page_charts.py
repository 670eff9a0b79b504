"""Predicted against true lengths: where the points of the cloud lie, and its legend."""

import pytest

from models.operations.application_figures import PredictedAnswer
from webapp.dashboard.charts.page_charts import LARGEST, MARGIN, SIZE, SMALLEST, Scatter, length_scatter


def answer(predicted: int, tokens: int, application: str = "chat") -> PredictedAnswer:
    return PredictedAnswer(application, tokens, predicted, predicted + 2, "length-1", None, None)


def scatter_of(answers: list[PredictedAnswer]) -> Scatter:
    return length_scatter(answers, {one.application: one.application for one in answers})


def test_right_predictions_lie_on_the_diagonal_and_all_within_the_square() -> None:
    scatter = scatter_of([answer(1, 1), answer(100, 100), answer(900, 9)])
    assert all(MARGIN <= point.x <= SIZE and 0 <= point.y <= SIZE - MARGIN for point in scatter.points)
    assert all(point.x - MARGIN == pytest.approx(SIZE - MARGIN - point.y) for point in scatter.points[:2])
    assert [value for _, value in scatter.grid] == ["1", "10", "100", "1,000"]


def test_equal_pairs_of_lengths_are_one_point_that_grows_with_their_number() -> None:
    scatter = scatter_of([answer(12, 12)] * 900 + [answer(3, 4)] * 5 + [answer(9, 8)])
    most, some, single = scatter.points
    assert (most.radius, single.radius) == (LARGEST, SMALLEST)
    assert SMALLEST < some.radius < LARGEST
    assert most.tooltip == "chat: 12 predicted, 12 generated, 900 answers"
    assert scatter.answers == 906
