"""The cases of `models.operations`: what the dashboard asks and what operators do, as `query_cases` has the others."""

from collections.abc import Callable

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from models import client_requests
from models.operations import (
    all_tenants,
    audit_trail,
    fleet_use,
    job_actions,
    job_lists,
    operator_sessions,
    predicted_answers,
    service_history,
    waiting_requests,
)
from models.operations.job_actions import JobFilter
from models.tables import RequestStatus
from tests.integration.million_rows import BATCHES, JOB
from tests.integration.query_cases import A_MINUTE, COUNTED, FEW, OPEN, RARE, Case, on_session

WEEK_OF_MINUTES, SAMPLES = 7 * 1440, 360
DIGEST = b"\x00" * 32
QUEUED_IDS = [f"resp_f{n:031x}" for n in range(50_001, 50_501)]
FAILED_IDS = [f"resp_{n:032x}" for n in range(50, 25_050, 50)]  # every fiftieth failed


def mates_of(id: str) -> Callable[[Connection], object]:
    """The mates of a job that is read before."""

    def mates(session: Session) -> object:
        view = client_requests.fetch(session, None, id)
        assert view is not None
        return job_lists.batch_mates(session, view)

    return on_session(mates)


OPERATION_CASES = [
    Case("service_history.take_samples", on_session(service_history.take_samples), 2 * COUNTED + 2 * A_MINUTE),
    Case("service_history.history", on_session(service_history.history, 900, 10), 90 + FEW, "of 15 minutes"),
    Case("service_history.history", on_session(service_history.history, 6 * 3600, 300), 360 + SAMPLES, "of 6 hours"),
    Case(
        "service_history.history",
        on_session(service_history.history, 7 * 86_400, 7200),
        WEEK_OF_MINUTES + SAMPLES,
        "of 7 days",
    ),
    Case("service_history.database_clock", on_session(service_history.database_clock)),
    Case("audit_trail.write", on_session(audit_trail.write, "me", "pause", "planning")),
    Case("audit_trail.entries", on_session(audit_trail.entries, 50)),
    Case("operator_sessions.begin", on_session(operator_sessions.begin, DIGEST, 60.0, key_id=1)),
    Case("operator_sessions.find", on_session(operator_sessions.find, DIGEST)),
    Case("operator_sessions.end", on_session(operator_sessions.end, DIGEST)),
    Case("fleet_use.workers_in_use", on_session(fleet_use.workers_in_use), OPEN),
    Case(
        "fleet_use.served_batches",
        on_session(fleet_use.served_batches, 900.0),
        fleet_use.MOST_BATCHES + 2 * BATCHES + FEW,
    ),
    Case("fleet_use.running_requests", on_session(fleet_use.running_requests), OPEN),
    Case("fleet_use.set_drained", on_session(fleet_use.set_drained, "w1", True)),
    Case(
        "waiting_requests.waiting_requests",
        on_session(waiting_requests.waiting_requests, [f"resp_f{n:031x}" for n in range(1, 1001)]),
        1000 + FEW,
    ),
    Case("waiting_requests.paused_since", on_session(waiting_requests.paused_since)),
    Case("waiting_requests.set_paused", on_session(waiting_requests.set_paused, True)),
    Case("predicted_answers.newest_answers", on_session(predicted_answers.newest_answers), 2 * 2000 + FEW),
    *(
        Case("job_actions.matching", on_session(job_actions.matching, which), 2 * 10_001 + FEW, of)
        for of, which in {
            "everything that is queued": JobFilter((RequestStatus.queued,)),
            "what failed": JobFilter((RequestStatus.failed, RequestStatus.cancelled)),
            "a tenant": JobFilter((RequestStatus.queued, RequestStatus.in_progress), "tenant-0"),
            "an application of a tenant": JobFilter((RequestStatus.failed,), "tenant-0", "application-2"),
            "an application that nobody has": JobFilter((RequestStatus.queued,), None, RARE),
        }.items()
    ),
    Case("job_actions.cancel_jobs", on_session(job_actions.cancel_jobs, QUEUED_IDS), 6 * 500 + FEW),
    Case("job_actions.submit_again", on_session(job_actions.submit_again, FAILED_IDS), 4 * 500 + FEW),
    Case(
        "job_lists.begins_with", on_session(job_lists.begins_with, "resp_0000000000000000000000000001", 50), 200 + FEW
    ),
    Case("job_lists.slowest", on_session(job_lists.slowest, 50, None, None), 2000 + 200 + FEW),
    Case("job_lists.slowest", on_session(job_lists.slowest, 50, "nobody", RARE), 2 * 2000 + FEW, "of nobody"),
    Case("job_lists.batch_mates", mates_of(f"resp_{500_000:032x}"), 200 + FEW, "of an ended batch"),
    Case("job_lists.batch_mates", mates_of(f"resp_f{1:031x}"), 200 + FEW, "of a running batch"),
    Case("all_tenants.newest_bulk_jobs", on_session(all_tenants.newest_bulk_jobs, 100), 1000 + FEW),
    Case("all_tenants.bulk_job", on_session(all_tenants.bulk_job, JOB)),
    Case("all_tenants.endpoint_states", on_session(all_tenants.endpoint_states, 100), 300 + FEW),
    Case("all_tenants.endpoint", on_session(all_tenants.endpoint, "we_1")),
    Case("all_tenants.deliveries", on_session(all_tenants.deliveries, "we_1", 100), 4 * 100),
    Case("all_tenants.deliveries", on_session(all_tenants.deliveries, "we_1", 100, 50_000), 4 * 100, "before one"),
    Case("all_tenants.redeliver_given_up", on_session(all_tenants.redeliver_given_up, "we_1"), 6 * 1000),
]
