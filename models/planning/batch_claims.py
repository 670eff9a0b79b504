"""Claims batches: turns the planner's assignments into rows of `batches`, in one statement. It decides nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic_core import to_json
from sqlalchemy import Connection

from models.connections.sql import run
from models.planning.leadership import Lead, LeadLost
from scheduling.policy import Assignment

# fields of an assignment that are columns of its batch
KEPT = ("worker", "joins", "sealed", "preempts", "iteration_limit", "most_rows", "estimated_s")


@dataclass(frozen=True, slots=True)
class Claim:
    """An assignment that became a batch; it holds only the requests that were still queued."""

    batch_id: int
    assignment: Assignment


def claim_batches(
    connection: Connection, lead: Lead, assignments: Sequence[Assignment], policy: str, epoch: int
) -> list[Claim]:
    """Inserts a batch for each assignment and moves its requests from queued to in progress, in one statement.

    Leaves out requests that were cancelled or requeued meanwhile or whose deadline has passed, and batches that then
    have no requests. An assignment that only preempts becomes a batch of size 0. Claims have the assignments' order.
    Locks the lead until the transaction ends; claims nothing and raises LeadLost if another process has the lead.
    """
    wanted = [
        {"request_id": request.id, "n": n}
        | {name: getattr(request, name) for name in ("generated", "prefill", "remaining")}
        for n, assignment in enumerate(assignments)
        for request in assignment.requests
    ]
    made = [
        {"n": n, "model": next((one.model for one in assignment.requests), None)}
        | {name: getattr(assignment, name) for name in KEPT}
        for n, assignment in enumerate(assignments)
    ]
    rows = run(
        connection,
        """
            with held as (
                select from leaderships where name = :lead and fence = :fence for share
            ), wanted as (
                select * from json_to_recordset(cast(:wanted as json))
                    as w (request_id text, n int, generated int, prefill int, remaining int)
            ), taken as (
                select r.id, w.* from requests r join wanted w on w.request_id = r.id
                where exists(select from held) and r.status = 'queued' and r.planner_epoch = :epoch
                    and r.twin_of is null and (r.deadline_at is null or r.deadline_at >= statement_timestamp())
                for update of r
            ), sizes as (
                select n, array_agg(id) as ids, count(*) as size, max(prefill) as length,
                    max(remaining) as generation_length
                from taken group by n
            ), made as (
                select nextval('batches_id_seq') as batch_id, a.*, s.ids, coalesce(s.size, 0) as size,
                    coalesce(s.length, 0) as length, coalesce(s.generation_length, 0) as generation_length
                from json_to_recordset(cast(:made as json)) as a (n int, worker text, model text, joins bool,
                    sealed bool, preempts text[], iteration_limit int, most_rows int, estimated_s float8)
                left join sizes s using (n)
                where exists(select from held) and (s.size > 0 or cardinality(a.preempts) > 0)
            ), inserted as (
                insert into batches (id, worker, model, policy, joins, sealed, preempts, size, length,
                    predicted_generation_length, iteration_limit, most_rows, estimated_s, sent_at)
                select batch_id, worker, model, :policy, joins, sealed, preempts, size, length,
                    generation_length, iteration_limit, most_rows, estimated_s, clock_timestamp()
                from made
            ), updated as (
                update requests r /* claim */ set status = 'in_progress', batch_id = m.batch_id,
                    attempts = r.attempts + 1,
                    generated_ids = r.generated_ids[1:t.generated], sealed_group = null
                from taken t join made m using (n) where r.id = t.id
            )
            select m.n, m.batch_id, coalesce(m.ids, cast('{}' as text[])) as request_ids
            from held left join made m on true order by m.n
        """,
        {
            "lead": lead.name,
            "fence": lead.fence,
            "epoch": epoch,
            "policy": policy,
            "wanted": to_json(wanted).decode(),
            "made": to_json(made, inf_nan_mode="strings").decode(),
        },
    )
    if not rows:
        raise LeadLost(lead.name)
    return [
        Claim(row.batch_id, _without_dropped(assignments[row.n], frozenset(row.request_ids)))
        for row in rows
        if row.n is not None
    ]


def _without_dropped(assignment: Assignment, taken: frozenset[str]) -> Assignment:
    if len(taken) == len(assignment.requests):
        return assignment
    return replace(assignment, requests=tuple(r for r in assignment.requests if r.id in taken))
