"""The burn-down of a bulk job: what is left falls, the prediction goes on at its pace, the deadline's pace is drawn."""

from datetime import UTC, datetime, timedelta

from models.bulk.bulk_tables import BulkJob
from models.operations.bulk_figures import EndedStep
from webapp.dashboard.charts.burn_down import burn_down
from webapp.dashboard.charts.time_charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH

BEGUN = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)
NOW = BEGUN + timedelta(seconds=100)
START = BEGUN.timestamp()


def a_job(completed: int = 5, **fields: object) -> BulkJob:
    times = {"created_at": BEGUN, "in_progress_at": BEGUN, "expires_at": BEGUN + timedelta(hours=1)}
    return BulkJob(**{"lines": 10, "completed": completed, "failed": 0} | times | fields)


def ends(points: str) -> tuple[float, float]:
    x, y = points.split()[-1].split(",")
    return float(x), float(y)


def test_lines_fall_to_what_is_left_and_the_prediction_to_zero_while_tokens_rise() -> None:
    steps = [EndedStep(START + 50, 2, 20), EndedStep(START + 100, 3, 30)]
    lines, tokens = burn_down(a_job(), steps, NOW + timedelta(seconds=100), NOW)
    drawn = {line.kind: line.points for line in lines.lines}
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    height = HEIGHT - TOP - BOTTOM
    assert ends(drawn["first"]) == (middle, HEIGHT - BOTTOM - height / 2)  # 5 of 10 lines at half of the time
    assert ends(drawn["second"]) == (WIDTH - RIGHT, HEIGHT - BOTTOM)
    assert HEIGHT - BOTTOM - height / 2 < ends(drawn["third"])[1] < HEIGHT - BOTTOM  # cut before the deadline
    assert {kind for kind, _ in tokens.colours} == {"first", "second"}
    assert ends({line.kind: line.points for line in tokens.lines}["second"])[1] == TOP  # 100 tokens, twice what is done


def test_a_job_that_has_ended_or_has_not_begun_has_no_prediction() -> None:
    ended, _ = burn_down(a_job(10, completed_at=NOW), [EndedStep(START + 60, 10, 7)], None, NOW + timedelta(days=1))
    assert [line.kind for line in ended.lines] == ["first"]
    assert ends(ended.lines[0].points) == (WIDTH - RIGHT, HEIGHT - BOTTOM)
    waiting, tokens = burn_down(a_job(0, in_progress_at=None), [], None, NOW)
    assert {line.kind for line in waiting.lines} == {"first", "third"}
    assert not tokens.empty


def test_a_clock_that_was_read_before_the_job_or_its_figures_breaks_no_chart() -> None:
    before = BEGUN - timedelta(seconds=3)
    for steps in ([], [EndedStep(START + 2, 10, 7)]):
        for chart in burn_down(a_job(), steps, None, before):
            places = [float(point.split(",")[0]) for line in chart.lines for point in line.points.split()]
            assert all(LEFT <= x <= WIDTH - RIGHT for x in places)
