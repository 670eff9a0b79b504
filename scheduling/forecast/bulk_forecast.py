"""Computes the work that is served before a bulk job ends: the job's own, and what is served of other jobs by then."""

from collections.abc import Callable, Mapping

from scheduling.request import Job
from scheduling.sharing.background.deadlines import Work
from scheduling.sharing.background.row_shares import shares_of


def work_before_end(left: Mapping[Job, Work], job: Job, weight_of: Callable[[str], float]) -> Work:
    """Return the work served until `job` has ended; each job is served at a rate in proportion to its share."""
    shares, own = shares_of(left, weight_of), left[job]
    until = own.tokens / shares[job]
    total = own
    for other, work in left.items():
        if other != job:
            total = total.together(work.scaled(min(1.0, until * shares[other] / max(1, work.tokens))))
    return total
