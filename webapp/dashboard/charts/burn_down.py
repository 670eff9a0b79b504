"""The charts of one bulk job: lines left and tokens generated, up to now, as predicted, and as its deadline needs."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import accumulate

from models.bulk.bulk_tables import BulkJob
from models.operations.bulk_figures import EndedStep
from webapp.dashboard.charts.time_charts import LEFT, RIGHT, WIDTH, Chart, ChartLine, axis_scale, clock, height_of

Line = tuple[str, str, list[tuple[float, float]]]  # CSS class, name, points of Unix time and value


def burn_down(job: BulkJob, steps: Sequence[EndedStep], end: datetime | None, now: datetime) -> list[Chart]:
    """Returns the charts of lines and of tokens; `steps` are in the order of time, `end` is the predicted end."""
    begun, ends = job.created_at.timestamp(), [step.until for step in steps]
    until = max(begun, (job.ended_at or now).timestamp(), *ends[-1:])  # `now` may have been read some seconds ago
    lines = [max(0, job.lines - ended) for ended in accumulate(step.lines for step in steps)]
    left, tokens = lines[-1] if lines else job.lines, sum(step.tokens for step in steps)
    ended = job.lines - left
    drawn: list[Line] = [("first", "left", [(begun, job.lines), *zip(ends, lines, strict=True), (until, left)])]
    generated = accumulate(step.tokens for step in steps)
    drawn_tokens: list[Line] = [
        ("first", "generated", [(begun, 0), *zip(ends, generated, strict=True), (until, tokens)])
    ]
    right = until
    if end is not None:
        right = max(until, min(end, job.expires_at).timestamp())
        drawn.append(("second", "predicted", [(until, left), (end.timestamp(), 0)]))
        expected = tokens / ended * job.lines if ended else tokens
        drawn_tokens.append(("second", "predicted", [(until, tokens), (end.timestamp(), expected)]))
    if job.ended_at is None and job.expires_at > now:
        drawn.append(("third", "pace that the deadline needs", [(until, left), (job.expires_at.timestamp(), 0)]))
    return [
        _chart(
            "Lines left",
            "Lines that have not ended, at the pace so far and at that which the deadline needs.",
            drawn,
            begun,
            right,
        ),
        _chart(
            "Tokens generated",
            "Tokens of the answers, and those to come if the other lines take as many each.",
            drawn_tokens,
            begun,
            right,
        ),
    ]


def _chart(title: str, description: str, lines: Sequence[Line], begin: float, end: float) -> Chart:
    span = max(1.0, end - begin)
    top, grid = axis_scale(max(value for _, _, points in lines for _, value in points))

    def drawn(points: Sequence[tuple[float, float]]) -> str:
        shown = [point for point in points if point[0] <= end]
        if len(shown) < len(points):  # cut at the right end of the axis
            (at, value), (next_at, next_value) = shown[-1], points[len(shown)]
            shown.append((end, value + (next_value - value) * (end - at) / (next_at - at)))
        return " ".join(f"{x_of(at):.1f},{height_of(value, top):.1f}" for at, value in shown)

    def x_of(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (at - begin) / span

    times = [
        (x_of(begin + span * n / 4), clock(datetime.fromtimestamp(int(begin + span * n / 4), UTC))[7:])
        for n in range(4)
    ]
    marks = [ChartLine(kind, drawn(points)) for kind, _, points in reversed(lines)]
    return Chart(title, description, [(kind, name) for kind, name, _ in lines], [], marks, grid, times, empty=False)
