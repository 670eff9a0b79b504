"""What a client finds that comes back when Retry-After says."""

from datetime import UTC, datetime, timedelta

from benchmarks.eta.judged_etas import Job, Snapshots, polls
from models.tables import StoredRequest

ARRIVED = datetime(2026, 11, 20, tzinfo=UTC)


def job(eta_s: float, high_s: float, took_s: float) -> Job:
    """Return a job that was answered `took_s` after its arrival, with its ETA at submission."""
    eta_at, high_at = (ARRIVED + timedelta(seconds=seconds) for seconds in (eta_s, high_s))
    request = StoredRequest(
        id="a",
        model="m",
        arrived_at=ARRIVED,
        predicted_tokens=5,
        eta_at=eta_at,
        eta_low_at=ARRIVED,
        eta_high_at=high_at,
    )
    return Job(request, None, ARRIVED.timestamp(), None, ARRIVED.timestamp() + took_s)


def instants(one: Job) -> list[float]:
    """Return the seconds after the arrival at which the client asks."""
    return [at - ARRIVED.timestamp() for at in polls(one, Snapshots())]


def test_a_client_that_comes_back_after_the_answer_asks_once() -> None:
    assert instants(job(eta_s=4, high_s=10, took_s=6.5)) == [7]


def test_an_early_client_asks_again_until_the_answer_is_there() -> None:
    # nothing is known of the queue here, so that it is told to come back each second
    assert instants(job(eta_s=4, high_s=4, took_s=6.5)) == [4, 5, 6, 7]
