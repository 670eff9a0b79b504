"""Predicted against true lengths: where the points of the cloud lie, and its legend."""

import pytest

from models.operations.application_figures import PredictedAnswer
from webapp.charts.page_charts import COLOURS, MARGIN, SIZE, length_scatter


def answer(predicted: int, tokens: int, application: str = "chat") -> PredictedAnswer:
    return PredictedAnswer(application, tokens, predicted, predicted + 2, "length-1", None, None)


def test_right_predictions_lie_on_the_diagonal_and_all_within_the_square() -> None:
    scatter = length_scatter([answer(1, 1), answer(100, 100), answer(900, 9)])
    assert all(MARGIN <= point.x <= SIZE and 0 <= point.y <= SIZE - MARGIN for point in scatter.points)
    assert all(point.x - MARGIN == pytest.approx(SIZE - MARGIN - point.y) for point in scatter.points[:2])
    assert [value for _, value in scatter.grid] == ["1", "10", "100", "1,000"]


def test_more_applications_than_colours_share_the_last_one() -> None:
    scatter = length_scatter([answer(1, 1, f"a{n}") for n in range(COLOURS + 2)])
    assert len(scatter.legend) == COLOURS + 1
    assert scatter.legend[-1] == ("other", "others")
