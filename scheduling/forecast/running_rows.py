"""When the rows of a continuous batch should end, from their progress and the batch's present pace.

A forecast is seconds old when the next one is complete. Running rows are looked at with each snapshot instead: what
their predictions leave once so many tokens have come, at the seconds of the batch's next iteration. That rows join and
leave meanwhile is among the errors that the intervals are learned from.
"""

from collections.abc import Iterator

from scheduling.costs import linearized
from scheduling.forecast.forecast import ExpectedAnswer, PresentWork
from scheduling.forecast.interval_calibration import spread_of
from scheduling.length_distributions import drawn_length, log_spread
from scheduling.request import COVERAGE


def expected_of_rows(work: PresentWork) -> Iterator[tuple[str, ExpectedAnswer]]:
    """What is expected of each row of this worker, by request."""
    rows = work.worker.rows
    if not rows:
        return
    cached = [row.request.length + row.generated for row in rows]
    read = sum(cached) / len(cached) if work.worker.memory.paged else max(cached)
    step_s = linearized(work.step_costs or work.worker.costs).decode_step_s(len(rows), read)
    for row in rows:
        median = drawn_length(row.request, 0.5, row.generated)
        upper = max(median, drawn_length(row.request, COVERAGE, row.generated))
        spread = spread_of(log_spread(median, upper), 1.0)
        yield row.request.id, ExpectedAnswer("running", 0.0, median * step_s, spread)
