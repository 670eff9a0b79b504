"""A call of every function of `models` that queries, with the rows that each of its statements may visit."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.orm import Session

from models import (
    api_keys,
    batch_claims,
    batch_results,
    client_requests,
    installation,
    invariants,
    leadership,
    leases,
    live_fleet,
    minute_history,
    model_versions,
    notifications,
    operator_overview,
    planner_requests,
    planner_state,
    process_heartbeats,
    queue_position,
    rate_counts,
    reconciler,
    request_predictions,
    requeue,
    response_time_estimate,
    retention,
    schema_upgrade,
    tenant_backlog,
    training_log,
    unstored_requests,
    window_stats,
)
from models.batch_results import Answer, Closed, Figures, Returned, Started
from models.client_requests import NewRequest
from models.leadership import Lead
from models.leases import Lease
from models.leasing import held_leases, worker_registration
from models.leasing.worker_registration import WorkerRegistration
from models.request_predictions import Predicted
from models.requeue import UnfinishedBatch
from models.tables import BatchStatus, RequestStatus
from models.tenants import tenant_settings, usage
from models.webhooks import webhook_deliveries, webhook_endpoints
from models.webhooks.webhook_deliveries import ClaimedDelivery, DeliveryResult
from models.webhooks.webhook_endpoints import EVENT_TYPES
from scheduling.policy import Assignment
from scheduling.request import Request
from tests.integration.million_rows import BATCHES, ENTRIES, LINES, MODEL, NEW, QUEUED, ROWS_A_BATCH, USING

# role_grants.grant changes rights, session_settings.is_pooled reads the connection's own process id
NO_QUERIES = {"schema_upgrade.alembic_config", "role_grants.grant", "session_settings.is_pooled"}
HOUR, DAY = 3600.0, 86_400.0
LAST_MONTH = datetime.now(UTC).date() - timedelta(29), datetime.now(UTC).date()
FEW = 100  # rows: any bound far below the tables' sizes does
A_BATCH = 8 * ROWS_A_BATCH  # locked, joined and updated
REQUEUED = 12 * ROWS_A_BATCH  # and looked at again: to tell suspects from others, or each row beside each answer
OPEN = 8 * BATCHES * ROWS_A_BATCH
EVERY_STATUS = len(RequestStatus)
RARE = "application-never"


@dataclass(frozen=True)
class Case:
    """A call of `module.function`; no statement of it may visit more than `rows` rows."""

    function: str
    call: Callable[[Connection], object]
    rows: int = FEW
    of: str = ""

    def __str__(self) -> str:
        return f"{self.function}-{self.of}" if self.of else self.function


def on_session(function: Callable[..., object], *arguments: Any, **named: Any) -> Callable[[Connection], object]:
    """A call with a session whose commits end with the test's transaction."""

    def call(connection: Connection) -> object:
        if not connection.in_transaction():
            connection.begin()  # else the session's commit would be one
        with Session(connection, join_transaction_mode="create_savepoint", expire_on_commit=False) as session:
            return function(session, *arguments, **named)

    return call


def page_cases() -> list[Case]:
    """Lists with every filter, also of what nobody has, from the first page and from the middle."""
    cases = []
    for tenant in (None, "tenant-0", "tenant-7", "nobody"):
        for statuses in ((), (RequestStatus.completed,), (RequestStatus.failed,), (RequestStatus.in_progress,)):
            for application in (None, "application-3", RARE):
                for oldest_first in (False, True):
                    of = f"{tenant}-{'-'.join(statuses)}-{application}-{'asc' if oldest_first else 'desc'}"
                    named = {"statuses": statuses, "application": application, "oldest_first": oldest_first}
                    call = on_session(client_requests.page, tenant, limit=20, **named)
                    cases.append(Case("client_requests.page", call, 2 * EVERY_STATUS * 21 + 2 * 21, of))
    return cases


def a_page_behind(connection: Connection) -> object:
    return on_session(client_requests.page, "tenant-0", after=ENDED_ID)(connection)


def a_queued(connection: Connection, count: int) -> list[str]:
    rows = connection.execute(
        text("select id from requests where status = 'queued' order by arrived_at limit :count"), {"count": count}
    )
    return [row.id for row in rows]


def a_lease(connection: Connection) -> Lease:
    of_open = "select id, fence from batches where id > (select max(id) from batches) - :open"
    row = connection.execute(text(f"{of_open} and status = 'running' order by id limit 1"), {"open": BATCHES}).one()
    return Lease(row.id, row.fence)


def a_lead(connection: Connection) -> Lead:
    lead = leadership.take(connection, "planner", 5.0)
    assert lead
    return lead


def an_assigned(connection: Connection) -> tuple[int, str]:
    row = connection.execute(text("select id, worker from batches where status = 'assigned' limit 1")).one()
    return row.id, row.worker


def in_batch(connection: Connection, lease: Lease) -> list[str]:
    rows = connection.execute(
        text("select id from requests where batch_id = :id and status = 'in_progress'"), {"id": lease.batch_id}
    )
    return [row.id for row in rows]


def a_request(id: str) -> Request:
    return Request(id=id, arrived_at=1.0, length=10, limit=20, predicted=10, predicted_upper=15)


def claim(connection: Connection) -> object:
    requests = tuple(map(a_request, a_queued(connection, ROWS_A_BATCH)))
    return batch_claims.claim_batches(connection, [Assignment("w1", requests, estimated_s=1.0)], "fusion", 1)


def answer(connection: Connection) -> None:
    lease = a_lease(connection)
    answers = [
        Answer(lease, one, RequestStatus.completed, "text", 5, "eos", 0.1) for one in in_batch(connection, lease)
    ]
    batch_results.write_answers(connection, answers)


def give_back(connection: Connection) -> None:
    lease = a_lease(connection)
    batch_results.write_returned(connection, [Returned(lease, one, (1, 2)) for one in in_batch(connection, lease)])


def close(connection: Connection) -> None:
    figures = Figures(1.0, 10, 10, 100, 10, 10, 1000)
    closed = Closed(a_lease(connection), BatchStatus.finished, 0.1, figures)
    batch_results.write_closed(connection, [closed], 5)


def incarnation(connection: Connection) -> float:
    row = connection.execute(text("select extract(epoch from started_at)::float8 from workers where name = 'w1'"))
    return float(row.scalar_one())


def renew(connection: Connection) -> object:
    return leases.renew(connection, "w1", incarnation(connection), {a_lease(connection): 3}, 10.0)


def a_new_request() -> NewRequest:
    return NewRequest("tenant-0", MODEL, "copy", "", "a b c", {}, 3, 3, 20, deadline_s=60.0, eta_s=1.0)


def submit_twice(connection: Connection) -> None:
    for _ in range(2):
        on_session(client_requests.submit, a_new_request(), idempotency_key="a key", digest=b"")(connection)


def claim_deliveries(connection: Connection) -> list[ClaimedDelivery]:
    return webhook_deliveries.claim(connection, 20, {"we_1": 1}, each=16, each_failing=1, claim_s=60.0)


def deliver(connection: Connection) -> None:
    results = [
        DeliveryResult(one.id, one.endpoint_id, one.attempts, 500, "no", 5.0) for one in claim_deliveries(connection)
    ]
    webhook_deliveries.write_results(connection, results, DAY)


def predict(connection: Connection) -> None:
    predicted = [Predicted(one, 10, 20) for one in a_queued(connection, 20)]
    request_predictions.write_predictions(connection, predicted, "length-9")


def newest_answers(connection: Connection) -> object:
    after = training_log.now(connection) - CANCELLED_LATELY_S
    known = [f"resp_{n:032x}" for n in range(200)]
    return training_log.finished_requests(connection, 1000, HOUR, after, known)


def a_window(since_ago_s: float, until_ago_s: float) -> Callable[[Connection], object]:
    def call(connection: Connection) -> object:
        now = training_log.now(connection)
        return on_session(window_stats.window_stats, now - since_ago_s, now - until_ago_s)(connection)

    return call


CANCELLED_LATELY_S = 540.0
ENDED_ID = f"resp_{500_000:032x}"
CURVES = {"prefill": [1e-5, 0.0, 0.0, 0.01]}
W1 = WorkerRegistration("w1", MODEL, "cpu", 1000, 1, None)
# Ended requests a minute: 0.9 million in a day and the cancelled ones of nine minutes; three kinds of reading them.
A_MINUTE = 900_000 // 1440 + 100_000 // 9
BATCHES_A_MINUTE = 100_000 // 1440
COUNTED = QUEUED + OPEN  # a count of what waits visits what it counts, in an index alone

CASES = [
    Case("api_keys.create", on_session(api_keys.create, name="n", tenant="t")),
    Case("api_keys.find", on_session(api_keys.find, "magnus-x")),
    Case("api_keys.revoke", on_session(api_keys.revoke, "magnus-abcdef")),
    Case("api_keys.list_all", on_session(api_keys.list_all)),
    Case("batch_claims.claim_batches", claim, A_BATCH),
    Case("batch_results.write_started", lambda c: batch_results.write_started(c, [Started(a_lease(c), 0.1)]), A_BATCH),
    Case("batch_results.write_answers", answer, REQUEUED),
    Case("batch_results.write_returned", give_back, REQUEUED),
    Case("batch_results.write_closed", close, REQUEUED),
    Case("client_requests.submit", submit_twice),
    Case("client_requests.fetch", on_session(client_requests.fetch, "tenant-0", ENDED_ID)),
    *page_cases(),
    Case("client_requests.page", a_page_behind, 2 * EVERY_STATUS * 21 + 2 * 21, "from the middle"),
    Case("client_requests.last_ended", on_session(client_requests.last_ended, 12), 6 * 12),
    Case("client_requests.cancel", on_session(client_requests.cancel, "tenant-0", ENDED_ID)),
    Case("client_requests.remove", on_session(client_requests.remove, "tenant-0", ENDED_ID)),
    Case("client_requests.finished", on_session(client_requests.finished, [ENDED_ID] * 24)),
    Case("client_requests.ended", on_session(client_requests.ended, [ENDED_ID] * 24)),
    Case("worker_registration.register", lambda c: worker_registration.register(c, W1, 5), OPEN),
    Case(
        "worker_registration.deregister",
        lambda c: worker_registration.deregister(c, "w1", incarnation(c), True, 5),
        OPEN,
    ),
    Case("leases.take_batch", lambda c: leases.take_batch(c, *an_assigned(c), 10.0), A_BATCH),
    Case("leases.renew", renew, A_BATCH),
    Case("held_leases.lock_held", lambda c: held_leases.lock_held(c, [a_lease(c)])),
    Case("live_fleet.lacking", lambda c: live_fleet.lacking(c, 20.0)),
    Case("live_fleet.largest_workers", lambda c: live_fleet.largest_workers(c, 120.0)),
    Case("live_fleet.live_workers", lambda c: live_fleet.live_workers(c, 10.0)),
    Case("live_fleet.set_curves", lambda c: live_fleet.set_curves(c, "w1", CURVES)),
    Case("live_fleet.open_batches", live_fleet.open_batches, OPEN),
    Case("live_fleet.batch_endings", lambda c: live_fleet.batch_endings(c, [5, 500, 50_000])),
    Case("minute_history.close_minutes", on_session(minute_history.close_minutes), 5 * 5 * A_MINUTE),
    Case("minute_history.minutes", on_session(minute_history.minutes, timedelta(hours=24)), 1440),
    Case("minute_history.ended_last_hour", on_session(minute_history.ended_last_hour), 60 + 6 * A_MINUTE),
    Case("minute_history.ended_totals", on_session(minute_history.ended_totals)),
    Case("minute_history.fold_totals", on_session(minute_history.fold_totals)),
    Case("model_versions.publish", lambda c: model_versions.publish(c, "length", b"", b"", {}, {})),
    Case("model_versions.set_aside", lambda c: model_versions.set_aside(c, "length-3", "unreadable")),
    Case("model_versions.activate", on_session(model_versions.activate, "length-3")),
    Case("model_versions.active_name", lambda c: model_versions.active_name(c, "length")),
    Case("model_versions.active_version", lambda c: model_versions.active_version(c, "length")),
    Case("model_versions.list_all", on_session(model_versions.list_all)),
    Case("operator_overview.request_counts", on_session(operator_overview.request_counts, 10.0), 2 * COUNTED),
    Case("operator_overview.workers_alive", on_session(operator_overview.workers_alive, 10.0)),
    Case("operator_overview.deaf_workers", on_session(operator_overview.deaf_workers)),
    Case("operator_overview.what_is_missing", on_session(operator_overview.what_is_missing, 10.0)),
    Case("operator_overview.applications", on_session(operator_overview.applications), 5000 + FEW),
    Case("operator_overview.workers", on_session(operator_overview.workers), 8 * BATCHES),
    Case("operator_overview.learned_models", on_session(operator_overview.learned_models)),
    Case("planner_requests.ends_of", lambda c: planner_requests.ends_of(c, ["unknown"] * 100), 300),
    Case("planner_requests.fetch_new_requests", lambda c: planner_requests.fetch_new_requests(c, 1), 5 * NEW),
    Case("planner_requests.requests_of_batches", lambda c: planner_requests.requests_of_batches(c, [100_002, 100_003])),
    Case("leases.prove_consuming", lambda c: leases.prove_consuming(c, "worker-0")),
    Case("leadership.take", lambda c: leadership.take(c, "planner", 5.0)),
    Case("leadership.renew", lambda c: leadership.renew(c, a_lead(c), 5.0)),
    Case("leadership.hold", lambda c: leadership.hold(c, a_lead(c))),
    Case("leadership.give_up", lambda c: leadership.give_up(c, a_lead(c))),
    Case("planner_state.next_epoch", planner_state.next_epoch),
    Case("planner_state.planner_inputs", planner_state.planner_inputs),
    Case("planner_state.set_policy", lambda c: planner_state.set_policy(c, "magnus")),
    Case("planner_state.write_service_state", lambda c: planner_state.write_service_state(c, "planner", {})),
    Case("process_heartbeats.write", lambda c: process_heartbeats.write(c, "beat", "host:1", 0.0)),
    Case("process_heartbeats.forget", lambda c: process_heartbeats.forget(c, "beat", "host:1")),
    Case("process_heartbeats.processes", process_heartbeats.processes),
    Case("installation.installation_id", installation.installation_id),
    Case("invariants.violations", lambda c: list(invariants.violations(c, 20.0)), OPEN),
    Case("notifications.notify_submitted", on_session(notifications.notify_submitted)),
    Case("notifications.notify_ended", lambda c: notifications.notify_ended(c, [ENDED_ID] * 201)),
    Case("rate_counts.add", on_session(rate_counts.add, "tenant-0", 3, 60)),
    Case("tenant_settings.change", on_session(tenant_settings.change, "tenant-0", {"weight": 2.0})),
    Case("tenant_settings.list_all", on_session(tenant_settings.list_all), 2 * FEW),
    Case("usage.fold", on_session(usage.fold, 1000), 4 * 1000),
    Case("usage.used", on_session(usage.used, None, *LAST_MONTH), 2 * 30 * USING + 2 * ENTRIES),
    Case(
        "usage.used", on_session(usage.used, "tenant-0", *LAST_MONTH, ("day",)), 2 * 30 * USING + 2 * ENTRIES, "of one"
    ),
    Case("webhook_endpoints.create", on_session(webhook_endpoints.create, "tenant-1", "https://e.com", EVENT_TYPES)),
    Case("webhook_endpoints.list_of", on_session(webhook_endpoints.list_of, "tenant-0")),
    Case("webhook_endpoints.rotate", on_session(webhook_endpoints.rotate, "tenant-0", "we_1", 60)),
    Case("webhook_endpoints.remove", on_session(webhook_endpoints.remove, "tenant-0", "we_1")),
    Case("webhook_deliveries.claim", claim_deliveries, 4 * FEW),
    Case("webhook_deliveries.write_results", deliver, 8 * FEW),
    Case("webhook_deliveries.page", on_session(webhook_deliveries.page, "tenant-0", "we_1", limit=20), 3 * FEW),
    Case("webhook_deliveries.redeliver", on_session(webhook_deliveries.redeliver, "tenant-0", "we_1", 500)),
    Case("webhook_deliveries.delete_old", lambda c: webhook_deliveries.delete_old(c, HOUR, 500), 4 * 500),
    Case("tenant_backlog.backlog_of", on_session(tenant_backlog.backlog_of, "tenant"), 2 * QUEUED),
    Case("queue_position.read_queue_snapshot", on_session(queue_position.read_queue_snapshot)),
    Case("reconciler.lose_expired_batches", lambda c: reconciler.lose_expired_batches(c, 10.0, 5), OPEN),
    Case("reconciler.batches_to_resend", lambda c: reconciler.batches_to_resend(c, 2.0, 1.0), OPEN),
    Case("reconciler.write_fallback_predictions", lambda c: reconciler.write_fallback_predictions(c, 0.0), 2000 + OPEN),
    Case("reconciler.withdraw_untaken_batches", lambda c: reconciler.withdraw_untaken_batches(c, 2.0, 4, 5), OPEN),
    Case("reconciler.workers_to_probe", lambda c: reconciler.workers_to_probe(c, 3.0)),
    Case("reconciler.fail_unschedulable", lambda c: reconciler.fail_unschedulable(c, ENDED_ID)),
    Case("reconciler.fail_too_large", lambda c: reconciler.fail_too_large(c, MODEL, 9000, [ENDED_ID]), of="new ones"),
    Case("reconciler.fail_too_large", lambda c: reconciler.fail_too_large(c, MODEL, 9000), 2 * QUEUED, "all"),
    Case("reconciler.expire_deadlines", reconciler.expire_deadlines, 4 * NEW),
    Case(
        "reconciler.recently_cancelled_or_failed",
        lambda c: reconciler.recently_cancelled_or_failed(c, 60.0),
        2 * A_MINUTE,
    ),
    Case("request_predictions.claim_unpredicted", lambda c: request_predictions.claim_unpredicted(c, 256), 3 * NEW),
    Case(
        "request_predictions.claim_outdated",
        lambda c: request_predictions.claim_outdated(c, "running-~", 64),
        2 * 64,
        "all",
    ),
    Case(
        "request_predictions.claim_outdated",
        lambda c: request_predictions.claim_outdated(c, "running-00000001", 64),
        2 * 64,
        "none",
    ),
    Case("request_predictions.write_predictions", predict),
    Case(
        "request_predictions.write_predictor_heartbeat", lambda c: request_predictions.write_predictor_heartbeat(c, "v")
    ),
    Case(
        "requeue.requeue",
        lambda c: requeue.requeue(c, [UnfinishedBatch(a_lease(c).batch_id)], 5),
        REQUEUED,
    ),
    Case("response_time_estimate.read_response_times", on_session(response_time_estimate.read_response_times), 250),
    Case(  # and the lines of bulk jobs, which stay
        "retention.delete_old_requests",
        lambda c: retention.delete_old_requests(c, HOUR, 500),
        2 * 500 + 2 * LINES + FEW,
    ),
    Case("retention.delete_old_batches", lambda c: retention.delete_old_batches(c, HOUR, 500), 2 * 500 + FEW),
    Case("retention.delete_old_workers", lambda c: retention.delete_old_workers(c, DAY)),
    Case("retention.delete_old_heartbeats", lambda c: retention.delete_old_heartbeats(c, HOUR)),
    Case("retention.delete_superseded_versions", retention.delete_superseded_versions),
    Case("schema_upgrade.schema_state", schema_upgrade.schema_state),
    Case("training_log.now", training_log.now),
    Case("training_log.count_answers", lambda c: training_log.count_answers(c, 5000, 30 * DAY), 5000 + FEW),
    Case("training_log.finished_requests", lambda c: training_log.finished_requests(c, 2000, 30 * DAY), 2000 + FEW),
    Case("training_log.finished_requests", newest_answers, 1000 + 3 * FEW, "after"),
    Case("training_log.finished_batches", lambda c: training_log.finished_batches(c, 1000, 30 * DAY), 1000 + FEW),
    Case("training_log.worker_profiles", training_log.worker_profiles),
    Case("unstored_requests.forget", lambda c: unstored_requests.forget(c, [ENDED_ID] * 24)),
    Case("unstored_requests.forget_ended", lambda c: unstored_requests.forget_ended(c, HOUR, 500)),
    Case("window_stats.window_stats", on_session(window_stats.window_stats), COUNTED + OPEN, "of the last minute"),
    Case("window_stats.window_stats", a_window(DAY, DAY - 60), COUNTED + OPEN, "of a minute long ago"),
]
