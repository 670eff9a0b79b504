"""Each statement, on a request in each state: what the table of a request's life allows happens, and nothing else."""

from collections.abc import Callable, Collection, Iterator

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session

from models import client_requests
from models.bulk import bulk_progress
from models.connections.session import make_engine
from models.leasing import batch_results, leases
from models.leasing.batch_results import Answer, RowReturned
from models.leasing.leases import Lease
from models.leasing.requeue import Failure, UnfinishedBatch, requeue
from models.planning import batch_claims, twins
from models.planning.leadership import Lead
from models.request_life import LIFE, UNFINISHED, Event, RequestStatus
from models.upkeep import reconciler
from scheduling.policy import Assignment
from scheduling.request import Request
from tests.integration.database_stage import MODEL, Stage

LEASE = Lease(1, 1)
CLAIMED = Assignment("w1", (Request("r", 0.0, 3, 20, 10, 15),))


def claim(connection: Connection) -> None:
    connection.exec_driver_sql("insert into leaderships values ('planner', 'me', 1, now() + interval '1 h')")
    batch_claims.claim_batches(connection, Lead("planner", 1), [CLAIMED], "vs", 0)


def answer(status: RequestStatus) -> Callable[[Connection], object]:
    written = Answer(LEASE, "r", status, None, 1, None, 0.0)
    return lambda connection: batch_results.write_answers(connection, [written])


def give_back(connection: Connection) -> None:
    batch_results.write_returned(connection, [RowReturned(LEASE, "r", ())], 0.0)


def lose_its_batch(connection: Connection) -> None:
    requeue(connection, [UnfinishedBatch(1)])


def blame_it(connection: Connection) -> None:
    connection.exec_driver_sql("update requests set suspected = 1")
    requeue(connection, [UnfinishedBatch(1, Failure(1, "Error"))])


def take_its_batch(connection: Connection) -> None:
    connection.exec_driver_sql("update batches set status = 'assigned'")
    leases.take_batch(connection, 1, "w1", 60.0)


def miss_its_deadline(connection: Connection) -> None:
    connection.exec_driver_sql("update requests set deadline_at = now() - interval '1 s'")
    reconciler.expire_deadlines(connection)


def end_the_request_that_it_follows(how: str) -> Callable[[Connection], object]:
    """The request is the twin of another one, which ended so."""

    def share(connection: Connection) -> None:
        connection.exec_driver_sql("update requests set twin_sha256 = 'r', twin_of = 'first'")
        connection.execute(
            text("""insert into requests (id, tenant, model, application, instructions, input, body, prompt_tokens,
                input_tokens, limit_tokens, status, finished_at, shared, twin_sha256, output_text)
            select 'first', tenant, model, application, instructions, input, body, prompt_tokens,
                input_tokens, limit_tokens, :how, now(), true, twin_sha256, 'text' from requests"""),
            {"how": how},
        )
        twins.share_answers(connection)

    return share


def asked_to_end(call: Callable[[Connection], object]) -> Callable[[Connection], object]:
    """The call for a request whose cancel was noted."""

    def asked(connection: Connection) -> None:
        connection.exec_driver_sql("update requests set cancel_requested_at = now()")
        call(connection)

    return asked


QUEUED, RUNNING = [RequestStatus.queued], [RequestStatus.in_progress]
answered = answer(RequestStatus.completed)
# What happens, the states of requests to which it happens, and the call.
CASES: list[tuple[Event, Collection[RequestStatus], Callable[[Connection], object]]] = [
    ("claim", QUEUED, claim),
    ("complete", RUNNING, answered),
    ("cut_off", RUNNING, answer(RequestStatus.incomplete)),
    ("complete", QUEUED, end_the_request_that_it_follows("completed")),
    ("cut_off", QUEUED, end_the_request_that_it_follows("incomplete")),
    ("fail", RUNNING, answer(RequestStatus.failed)),
    ("fail", RUNNING, blame_it),
    ("fail", QUEUED, lambda c: reconciler.fail_too_large(c, MODEL, 1)),
    ("fail", QUEUED, lambda c: reconciler.fail_unschedulable(c, "r")),
    ("fail", QUEUED, miss_its_deadline),
    ("give_back", RUNNING, give_back),
    ("give_back", RUNNING, lose_its_batch),
    ("cancel", UNFINISHED, lambda c: client_requests.cancel(Session(c), None, ["r"])),
    ("cancel", UNFINISHED, lambda c: bulk_progress.stop_lines(c, "batch_1")),
    *(("stop", RUNNING, asked_to_end(call)) for call in (answered, give_back, lose_its_batch, blame_it)),
    ("stop", RUNNING, asked_to_end(take_its_batch)),
]


@pytest.fixture(scope="module")
def database(module_database_url: str) -> Iterator[Engine]:
    """A bulk job whose only line is the request, and the batch in which that runs or ran."""
    engine = make_engine(module_database_url)
    stage = Stage(engine)
    stage.request("r", batch_id=1)
    stage.sql("""insert into bulk_jobs (id, tenant, endpoint, input_file_id, completion_window, lines, last_line,
        expires_at) values ('batch_1', 'acme', '/v1/responses', 'file_1', '24h', 1, 1, clock_timestamp())""")
    stage.sql("insert into bulk_lines (job_id, line, custom_id, request_id) values ('batch_1', 1, 'one', 'r')")
    stage.sql("""insert into batches (worker, policy, status, size, length, predicted_generation_length, estimated_s)
        values ('w1', 'vs', 'running', 1, 1, 1, 1.0)""")
    yield engine
    engine.dispose()


@pytest.mark.parametrize("status", RequestStatus)
def test_what_happens_to_a_request_leads_it_on_as_the_table_says_and_never_out_of_its_end(
    database: Engine, status: RequestStatus
) -> None:
    for event, states, call in CASES:
        with database.connect() as connection:
            connection.execute(
                text("update requests set status = :status, finished_at = case when :final then now() end"),
                {"status": status.value, "final": status.final},
            )
            call(connection)
            after = connection.scalar(text("select status from requests where id = 'r'"))
            connection.rollback()
        assert after == (LIFE[status][event] if status in states else status), event


def test_every_entry_of_the_table_is_tried() -> None:
    tried = {(state, event) for event, states, _ in CASES for state in states}
    assert tried == {(state, event) for state, events in LIFE.items() for event in events}
