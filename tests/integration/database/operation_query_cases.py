"""The cases of `models.operations`: what the dashboard asks and what operators do, as `query_cases` has the others."""

from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import Connection, text
from sqlalchemy.orm import Session

from models import client_requests, planner_state
from models.bulk import bulk_jobs
from models.connections.sql import database_clock
from models.operations import (
    application_figures,
    application_words,
    fleet_use,
    operator_access,
    operator_jobs,
    operator_overview,
    promise_book,
    request_histograms,
    scaling_signals,
    service_history,
    shadow_round,
)
from models.operations.operator_jobs import JobFilter
from models.operations.scaling_signals import ScalingSignal
from models.operations.shadow_round import ShadowRound
from models.planning import queue_snapshot
from models.planning.queue_snapshot import QueueSnapshot
from models.tables import RequestStatus
from models.webhooks import webhook_deliveries, webhook_endpoints
from tests.integration.database.full_database import BATCHES, DELIVERED, PROMISING, QUEUED
from tests.integration.database.query_cases import A_MINUTE, COUNTED, ENDED_ID, FEW, OPEN, RARE, Case, on_session

WEEK_OF_MINUTES, SAMPLES = 7 * 1440, 360
DIGEST = b"\x00" * 32
QUEUED_IDS = [f"resp_f{n:031x}" for n in range(QUEUED // 2, QUEUED // 2 + 500)]
A_ROUND = ShadowRound("small", "vs", 60, 900.0, 9.6, {"vs": 10.0}, "vs", 0.0, "", 0.04)
FAILED_IDS = [f"resp_{n:032x}" for n in range(50, 25_050, 50)]  # every fiftieth failed


def mates_of(id: str) -> Callable[[Connection], object]:
    """Returns a call that reads a job and then its batch mates."""

    def mates(session: Session) -> object:
        view = client_requests.fetch(session, None, id)
        assert view is not None
        return operator_jobs.batch_mates(session, view)

    return on_session(mates)


def count_a_minute(connection: Connection) -> None:
    """Counts the requests that ended in one minute."""
    until = {"until": str(connection.execute(text("select now() - interval '90 s'")).scalar_one())}
    planner_state.write_service_state(connection, "histograms", until)
    on_session(request_histograms.count_ended)(connection)


def warn(connection: Connection) -> None:
    """Compares open promises with a forecast."""
    queue_snapshot.write_queue_snapshot(connection, QueueSnapshot(at=datetime.now(UTC)))
    assert on_session(promise_book.warn_of_risks)(connection) == 0


OPERATION_CASES = [
    Case("promise_book.settle", lambda c: promise_book.settle(c, 50), 8 * 50),
    Case("promise_book.warn_of_risks", warn, 6 * 100),
    Case("promise_book.delete_old", lambda c: promise_book.delete_old(c, 86_400.0, 200), 4 * 200),
    Case("promise_book.read_book", on_session(promise_book.read_book, None), 3 * 168 * PROMISING),
    Case("promise_book.read_book", on_session(promise_book.read_book, "tenant-1"), 3 * 168 * PROMISING, "of one"),
    Case("promise_book.of_models", on_session(promise_book.of_models), 3 * 24 * PROMISING),
    Case("promise_book.withheld_levels", on_session(promise_book.withheld_levels), 3 * 2 * PROMISING),
    Case("request_histograms.count_ended", count_a_minute, 2 * A_MINUTE),
    Case("request_histograms.read", on_session(request_histograms.read)),
    # reads all that waits, and the tenth of the ended requests that was cancelled lately
    Case("scaling_signals.read_demands", on_session(scaling_signals.read_demands), 2 * COUNTED),
    Case("scaling_signals.read_workers", lambda c: scaling_signals.read_workers(c, 10.0)),
    Case("scaling_signals.write_signals", lambda c: scaling_signals.write_signals(c, {"m": ScalingSignal(1.0, 1)})),
    Case("scaling_signals.read_signals", on_session(scaling_signals.read_signals)),
    Case("shadow_round.read_shadow_round", on_session(shadow_round.read_shadow_round)),
    Case("shadow_round.write_shadow_round", lambda c: shadow_round.write_shadow_round(c, A_ROUND)),
    Case("service_history.take_samples", on_session(service_history.take_samples), 2 * COUNTED + 2 * A_MINUTE),
    Case("service_history.history", on_session(service_history.history, 900, 10), 90 + FEW, "of 15 minutes"),
    Case("service_history.history", on_session(service_history.history, 6 * 3600, 300), 360 + SAMPLES, "of 6 hours"),
    Case(
        "service_history.history",
        on_session(service_history.history, 7 * 86_400, 7200),
        WEEK_OF_MINUTES + SAMPLES,
        "of 7 days",
    ),
    Case("sql.database_clock", database_clock),
    Case("operator_access.record_action", on_session(operator_access.record_action, "me", "pause", "planning")),
    Case(
        "operator_access.record_if_written",
        lambda c: operator_access.record_if_written(c, "me@host", "policy set", "vs", {"state_dir": "x"}),
    ),
    Case("operator_access.audit_entries", on_session(operator_access.audit_entries, 50)),
    Case("operator_access.begin_session", on_session(operator_access.begin_session, DIGEST, 60.0, key_id=1)),
    Case("operator_access.find_session", on_session(operator_access.find_session, DIGEST)),
    Case("operator_access.end_session", on_session(operator_access.end_session, DIGEST)),
    Case("fleet_use.empty_answers", on_session(fleet_use.empty_answers), 400 + FEW),
    Case("fleet_use.workers_in_use", on_session(fleet_use.workers_in_use), OPEN),
    Case(
        "fleet_use.served_batches",
        on_session(fleet_use.served_batches, 900.0),
        fleet_use.MOST_BATCHES + 2 * BATCHES + FEW,
    ),
    Case("fleet_use.running_requests", on_session(fleet_use.running_requests), OPEN),
    Case("fleet_use.set_drained", on_session(fleet_use.set_drained, "w1", True)),
    Case(
        "operator_jobs.waiting_requests",
        on_session(operator_jobs.waiting_requests, [f"resp_f{n:031x}" for n in range(1, 1001)]),
        1000 + FEW,
    ),
    Case("operator_overview.paused_since", on_session(operator_overview.paused_since)),
    Case("operator_overview.set_paused", on_session(operator_overview.set_paused, True)),
    Case("application_figures.newest_answers", on_session(application_figures.newest_answers), 2 * 2000 + FEW),
    *(
        Case("operator_jobs.matching_jobs", on_session(operator_jobs.matching_jobs, which), 2 * 10_001 + FEW, of)
        for of, which in {
            "everything that is queued": JobFilter((RequestStatus.queued,)),
            "what failed": JobFilter((RequestStatus.failed, RequestStatus.cancelled)),
            "a tenant": JobFilter((RequestStatus.queued, RequestStatus.in_progress), "tenant-0"),
            "an application of a tenant": JobFilter((RequestStatus.failed,), "tenant-0", "application-2"),
            "an application that nobody has": JobFilter((RequestStatus.queued,), None, RARE),
        }.items()
    ),
    *(
        Case("operator_jobs.count_jobs", on_session(operator_jobs.count_jobs, which), 10_001 + FEW, of)
        for of, which in {
            "everything": JobFilter(tuple(RequestStatus)),
            "an application that nobody has": JobFilter(tuple(RequestStatus), None, RARE),
        }.items()
    ),
    Case(
        "application_words.first_words",
        on_session(application_words.first_words, [f"{n:012x}" for n in range(50)]),
        50 * len(RequestStatus),  # the newest request of each application and status
    ),
    Case("operator_jobs.cancel_jobs", on_session(operator_jobs.cancel_jobs, QUEUED_IDS), 6 * 500 + FEW),
    Case("operator_jobs.cancel_waiting", on_session(operator_jobs.cancel_waiting, RARE), COUNTED),
    Case("operator_jobs.move_waiting", on_session(operator_jobs.move_waiting, RARE, "words"), COUNTED),
    Case("operator_jobs.served_models", on_session(operator_jobs.served_models)),
    Case("operator_jobs.submit_again", on_session(operator_jobs.submit_again, FAILED_IDS, 10), 4 * 500 + FEW),
    Case(
        "operator_jobs.jobs_with_prefix",
        on_session(operator_jobs.jobs_with_prefix, "resp_0000000000000000000000000001", 50),
        200 + FEW,
    ),
    Case("operator_jobs.slowest_jobs", on_session(operator_jobs.slowest_jobs, 50, None, None), 2000 + 200 + FEW),
    Case(
        "operator_jobs.slowest_jobs",
        on_session(operator_jobs.slowest_jobs, 50, "nobody", RARE),
        2 * 2000 + FEW,
        "of nobody",
    ),
    Case("operator_jobs.batch_mates", mates_of(ENDED_ID), 200 + FEW, "of an ended batch"),
    Case("operator_jobs.batch_mates", mates_of(f"resp_f{1:031x}"), 200 + FEW, "of a running batch"),
    Case("bulk_jobs.newest_jobs", on_session(bulk_jobs.newest_jobs, 100), 1000 + FEW),
    Case("webhook_endpoints.endpoint_states", on_session(webhook_endpoints.endpoint_states, 100), 300 + FEW),
    Case(
        "webhook_deliveries.newest_deliveries", on_session(webhook_deliveries.newest_deliveries, "we_1", 100), 4 * 100
    ),
    Case(
        "webhook_deliveries.newest_deliveries",
        on_session(webhook_deliveries.newest_deliveries, "we_1", 100, DELIVERED // 2),
        4 * 100,
        "before one",
    ),
    Case("webhook_deliveries.redeliver_given_up", on_session(webhook_deliveries.redeliver_given_up, "we_1"), 6 * 1000),
]
