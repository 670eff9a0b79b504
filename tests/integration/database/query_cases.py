"""A call of every function of `models` that queries, with the rows that each of its statements may visit."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.orm import Session

from benchmarks.inputs.filled_database import REQUESTS_A_BATCH
from models import (
    client_requests,
    ended_requests,
    model_versions,
    new_requests,
    notifications,
    planner_state,
    registered_workers,
    request_predictions,
    training_log,
)
from models.connections import schema_state
from models.connections.sql import database_clock
from models.leasing import batch_results, leases, requeue, worker_registration
from models.leasing.batch_results import Answer, BatchBegan, BatchEnded, Figures, RowReturned
from models.leasing.leases import Lease
from models.leasing.requeue import UnfinishedBatch
from models.new_requests import NewRequest, SubmissionEta
from models.planning import batch_claims, leadership, live_fleet, planner_requests, queue_snapshot, twins
from models.planning.leadership import Lead
from models.planning.queue_snapshot import QueueSnapshot
from models.promise_tables import Promise
from models.tables import BatchStatus, RequestStatus
from models.upkeep import reconciler, retention
from scheduling.costs import ProfiledCurves, ServingCurves
from scheduling.policy import Assignment
from scheduling.request import Request
from tests.integration.database.full_database import (
    BATCHES,
    ENDED,
    LINES,
    MODEL,
    NEW,
    OLD_BATCHES,
    QUEUED,
    ROWS_A_BATCH,
)
from tests.integration.database_stage import facts

# role_grants.grant changes rights, session_settings.is_pooled reads the connection's own process id, read_views and run
# run a statement that they are given
NO_QUERIES = {
    "schema_upgrade.alembic_config",
    "schema_upgrade.grant_rights",
    "session.is_pooled",
    "client_requests.read_views",
    "sql.run",
}
HOUR, DAY = 3600.0, 86_400.0
FEW = 100  # rows; any bound far below the tables' sizes works
MOST = 1_000_000  # requests that a planner fetches: more than there are
A_BATCH = 8 * ROWS_A_BATCH  # rows of a batch that is locked, joined and updated
REQUEUED = 12 * ROWS_A_BATCH  # rows of a batch that are locked, joined, updated and read again
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
            connection.begin()  # otherwise the session's commit would commit in fact
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
                    named["texts"] = tenant is not None
                    call = on_session(client_requests.page, tenant, limit=20, **named)
                    cases.append(Case("client_requests.page", call, 2 * EVERY_STATUS * 21 + 2 * 21, of))
    return cases


def a_page_behind(connection: Connection) -> object:
    return on_session(client_requests.page, "tenant-0", after=ENDED_ID, texts=True)(connection)


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
    assignments = [Assignment("w1", requests, estimated_s=1.0)]
    return batch_claims.claim_batches(connection, a_lead(connection), assignments, "fusion", 1)


def answer(connection: Connection) -> None:
    lease = a_lease(connection)
    answers = [
        Answer(lease, one, RequestStatus.completed, "text", 5, "eos", 0.1) for one in in_batch(connection, lease)
    ]
    batch_results.write_answers(connection, answers)


def begin(connection: Connection) -> None:
    batch_results.write_started(connection, [BatchBegan(a_lease(connection), 0.0)], 0.1)


def give_back(connection: Connection) -> None:
    lease = a_lease(connection)
    returned = [RowReturned(lease, one, (1, 2)) for one in in_batch(connection, lease)]
    batch_results.write_returned(connection, returned, 0.1, {"small": "a"})


def close(connection: Connection) -> None:
    figures = Figures(1.0, 10, 10, 100, 10, 10, 1000)
    ended = BatchEnded(a_lease(connection), BatchStatus.finished, 0.0, figures)
    batch_results.write_closed(connection, [ended], 0.1)


def incarnation(connection: Connection) -> float:
    row = connection.execute(text("select extract(epoch from started_at)::float8 from workers where name = 'w1'"))
    return float(row.scalar_one())


def renew(connection: Connection) -> object:
    return leases.renew(connection, "w1", incarnation(connection), {a_lease(connection): 3}, 10.0)


def a_new_request() -> NewRequest:
    return NewRequest(
        "tenant-0", MODEL, "copy", "", "a b c", {}, 3, 3, 20, deadline_s=60.0, eta=SubmissionEta(1.0, 1.0, 0.5, 2.0)
    )


def submit_twice(connection: Connection) -> None:
    for _ in range(2):
        new_requests.submit(connection, a_new_request(), idempotency_key="a key", digest=b"")


def sell(connection: Connection) -> None:
    promise = Promise("a quote", 0.9, 10.0, None, 5.0)
    new_requests.sell(connection, promise, "resp_new", "tenant-0", "default", datetime.now(UTC))


def meet_twins(connection: Connection) -> list[str]:
    queued = a_queued(connection, NEW)
    connection.execute(
        text("update requests set twin_sha256 = 'equal', tenant = 'twins' where id = any(:ids)"), {"ids": queued}
    )
    assert len(twins.follow(connection, queued)) == NEW - 1
    return queued


def share_an_answer(connection: Connection) -> None:
    queued = meet_twins(connection)
    connection.execute(
        text("""update requests set status = 'completed', finished_at = now()
            where id = any(:ids) and shared"""),
        {"ids": queued},
    )
    assert len(twins.share_answers(connection)) == NEW - 1


def predict(connection: Connection) -> None:
    claimed = request_predictions.claim_unpredicted(connection, 20)
    lengths = dict.fromkeys((one.id for one in claimed), (10, 20))
    assert request_predictions.write_predictions(connection, claimed, lengths, "length-9") == len(claimed)


def newest_answers(connection: Connection) -> object:
    after = database_clock(connection).timestamp() - CANCELLED_LATELY_S
    known = [f"resp_{n:032x}" for n in range(200)]
    return training_log.finished_requests(connection, 1000, HOUR, after, known)


CANCELLED_LATELY_S = 540.0
ENDED_ID = f"resp_{ENDED // 2:032x}"
CURVES = ProfiledCurves(ServingCurves((1e-5, 0.0, 0.0, 0.01), (1e-5, 0.0, 0.0, 0.01)))
W1 = facts(model=MODEL, kv_tokens=1000)
# Ended requests a minute: nine of ten ended within a day, the others, cancelled ones, within nine minutes.
A_MINUTE = ENDED * 9 // 10 // 1440 + ENDED // 10 // 9
OPEN_IDS = [ENDED // REQUESTS_A_BATCH + 1 + OLD_BATCHES + n for n in (1, 2)]
COUNTED = QUEUED + OPEN  # a count of what waits visits what it counts, in an index alone


def lose_one(connection: Connection) -> object:
    one = "select b.id, true from batches b where b.id = :id"
    return requeue.lose_batches(connection, one, {"id": a_lease(connection).batch_id})


CASES = [
    Case("batch_claims.claim_batches", claim, A_BATCH),
    Case(
        "batch_results.write_started", lambda c: batch_results.write_started(c, [BatchBegan(a_lease(c), 0)], 1), A_BATCH
    ),
    Case("batch_results.write_answers", answer, REQUEUED),
    Case("batch_results.write_returned", give_back, REQUEUED),
    Case("batch_results.write_closed", close, REQUEUED),
    Case("new_requests.submit", submit_twice),
    Case("new_requests.is_repeat", on_session(new_requests.is_repeat, "tenant-0", "a key")),
    Case("new_requests.sell", sell),
    Case("new_requests.insert", lambda c: new_requests.insert(c, [a_new_request(), a_new_request()])),
    Case("client_requests.fetch", on_session(client_requests.fetch, "tenant-0", ENDED_ID)),
    *page_cases(),
    Case("client_requests.page", a_page_behind, 2 * EVERY_STATUS * 21 + 2 * 21, "from the middle"),
    Case("ended_requests.last_ended", on_session(ended_requests.last_ended, 12), 6 * 12),
    Case("client_requests.cancel", on_session(client_requests.cancel, "tenant-0", [ENDED_ID])),
    Case("client_requests.remove", on_session(client_requests.remove, "tenant-0", ENDED_ID)),
    Case("ended_requests.finished", on_session(ended_requests.finished, [ENDED_ID] * 24)),
    Case("ended_requests.ended", on_session(ended_requests.ended, [ENDED_ID] * 24)),
    Case("worker_registration.other_process", lambda c: worker_registration.other_process(c, "w1", "host:1", 10.0)),
    Case("worker_registration.keep_alive", lambda c: worker_registration.keep_alive(c, "w1", "host:1")),
    Case("worker_registration.register", lambda c: worker_registration.register(c, W1), OPEN),
    Case(
        "worker_registration.deregister",
        lambda c: worker_registration.deregister(c, "w1", incarnation(c), True),
        OPEN,
    ),
    Case("leases.take_batch", lambda c: leases.take_batch(c, *an_assigned(c), 10.0, {"small": "a"}), A_BATCH),
    Case("leases.renew", renew, A_BATCH),
    Case("leases.lock_held", lambda c: leases.lock_held(c, [a_lease(c)])),
    Case("live_fleet.order_changes", lambda c: live_fleet.order_changes(c, {"w1": "large"})),
    Case("live_fleet.live_workers", lambda c: live_fleet.live_workers(c, 10.0)),
    Case("registered_workers.registered_workers", registered_workers.registered_workers),
    Case("live_fleet.served_adapters", on_session(live_fleet.served_adapters)),
    Case("live_fleet.set_curves", lambda c: live_fleet.set_curves(c, "w1", CURVES)),
    Case("live_fleet.open_batches", live_fleet.open_batches, OPEN),
    Case("live_fleet.serving_times", lambda c: live_fleet.serving_times(c, [5, 500, ENDED // 20])),
    Case("model_versions.publish", lambda c: model_versions.publish(c, "length", b"", b"", {}, {})),
    Case("model_versions.set_aside", lambda c: model_versions.set_aside(c, "length-3", "unreadable")),
    Case("model_versions.activate", on_session(model_versions.activate, "length-3")),
    Case("model_versions.active_name", lambda c: model_versions.active_name(c, "length")),
    Case("model_versions.active_version", lambda c: model_versions.active_version(c, "length")),
    Case("model_versions.list_all", on_session(model_versions.list_all)),
    Case("planner_requests.ends_of", lambda c: planner_requests.ends_of(c, ["unknown"] * 100), 300),
    Case("planner_requests.fetch_new_requests", lambda c: planner_requests.fetch_new_requests(c, 1, MOST), 5 * NEW),
    Case(
        "planner_requests.fetch_new_requests",
        lambda c: planner_requests.fetch_new_requests(c, 9, MOST),
        5 * QUEUED,
        "all",
    ),
    Case(
        "planner_requests.fetch_new_requests", lambda c: planner_requests.fetch_new_requests(c, 9, FEW), 5 * FEW, "some"
    ),
    Case("twins.follow", meet_twins, 20 * NEW),
    Case("twins.share_answers", share_an_answer, 20 * NEW),
    Case("planner_requests.fetch_again", lambda c: planner_requests.fetch_again(c, ["unknown"] * 100), 300),
    Case(
        "planner_requests.fetched_of", lambda c: planner_requests.fetched_of(c, ["tenant-1"], ["batch_1"]), 2 * QUEUED
    ),
    Case("planner_requests.queued_by_model", lambda c: planner_requests.queued_by_model(c, ["gone"]), QUEUED),
    Case("planner_requests.requests_of_batches", lambda c: planner_requests.requests_of_batches(c, OPEN_IDS)),
    Case("leases.prove_consuming", lambda c: leases.prove_consuming(c, "worker-0")),
    Case("leadership.take", lambda c: leadership.take(c, "planner", 5.0)),
    Case("leadership.renew", lambda c: leadership.renew(c, a_lead(c), 5.0)),
    Case("leadership.hold", lambda c: leadership.hold(c, a_lead(c))),
    Case("leadership.give_up", lambda c: leadership.give_up(c, a_lead(c))),
    Case("planner_state.next_epoch", planner_state.next_epoch),
    Case("planner_state.planner_inputs", planner_state.planner_inputs),
    Case("planner_state.read_service_state", lambda c: planner_state.read_service_state(c, "planner", 60.0)),
    Case("planner_state.set_policy", lambda c: planner_state.set_policy(c, "magnus")),
    Case("planner_state.write_service_state", lambda c: planner_state.write_service_state(c, "planner", {})),
    Case("notifications.notify_submitted", notifications.notify_submitted),
    Case("notifications.notify_ended", lambda c: notifications.notify_ended(c, [ENDED_ID] * 201)),
    Case("queue_snapshot.read_queue_snapshot", on_session(queue_snapshot.read_queue_snapshot)),
    Case(
        "queue_snapshot.write_queue_snapshot",
        lambda c: queue_snapshot.write_queue_snapshot(c, QueueSnapshot(at=datetime.now(UTC))),
    ),
    Case("reconciler.lose_expired_batches", lambda c: reconciler.lose_expired_batches(c, 10.0), OPEN),
    Case("reconciler.batches_to_resend", lambda c: reconciler.batches_to_resend(c, 2.0, 1.0), OPEN),
    Case("reconciler.write_fallback_predictions", lambda c: reconciler.write_fallback_predictions(c, 0.0), 2000 + OPEN),
    Case("reconciler.withdraw_untaken_batches", lambda c: reconciler.withdraw_untaken_batches(c, 2.0, 4), OPEN),
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
        "request_predictions.write_predictor_heartbeat",
        lambda c: request_predictions.write_predictor_heartbeat(c, "v", False),
    ),
    Case("requeue.requeue", lambda c: requeue.requeue(c, [UnfinishedBatch(a_lease(c).batch_id)]), REQUEUED),
    Case("requeue.lose_batches", lose_one, REQUEUED),
    Case(  # also visits the lines of bulk jobs, which stay
        "retention.delete_old_requests",
        lambda c: retention.delete_old_requests(c, HOUR, 500),
        2 * 500 + 2 * LINES + FEW,
    ),
    Case("schema_state.schema_state", schema_state.schema_state),
    Case("training_log.count_answers", lambda c: training_log.count_answers(c, 5000, 30 * DAY), 5000 + FEW),
    Case("training_log.finished_requests", lambda c: training_log.finished_requests(c, 2000, 30 * DAY), 2000 + FEW),
    Case("training_log.finished_requests", newest_answers, 1000 + 3 * FEW, "after"),
    Case("training_log.finished_batches", lambda c: training_log.finished_batches(c, 1000, 30 * DAY), 1000 + FEW),
    Case("training_log.count_batches", lambda c: training_log.count_batches(c, 1000, 30 * DAY), 1000 + FEW),
    Case("training_log.worker_profiles", training_log.worker_profiles),
    Case("retention.delete_unstored_texts", lambda c: retention.delete_unstored_texts(c, [ENDED_ID] * 24)),
    Case("retention.delete_old_unstored_texts", lambda c: retention.delete_old_unstored_texts(c, HOUR, 500)),
]
