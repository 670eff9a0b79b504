"""Claims batches: turns the planner's assignments into rows of `batches`, in one statement. It makes no decisions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from models.planning.leadership import Lead, LeadLost
from models.sql import run
from scheduling.policy import Assignment


@dataclass(frozen=True, slots=True)
class Claim:
    """An assignment that became a batch, with the requests that were still queued."""

    batch_id: int
    assignment: Assignment


def claim_batches(
    connection: Connection, lead: Lead, assignments: Sequence[Assignment], policy: str, epoch: int
) -> list[Claim]:
    """Insert a batch for each assignment and move its requests from queued to in progress, in one statement.

    Leaves out requests that were cancelled or requeued meanwhile, or whose deadline has passed, and batches without
    requests. An assignment that only preempts becomes a batch of size 0. Claims are in the order of the assignments.
    Locks the lead until the transaction ends; claims nothing and raises LeadLost if another process has it.
    """
    wanted = [(n, request) for n, assignment in enumerate(assignments) for request in assignment.requests]
    rows = run(
        connection,
        """
            with held as (
                select from leaderships where name = :lead and fence = :fence for share
            ), wanted as (
                select * from unnest(
                    cast(:request_ids as text[]), cast(:request_n as int[]), cast(:generated as int[]),
                    cast(:prefills as int[]), cast(:remaining as int[])
                ) as w (request_id, n, generated, prefill, remaining)
            ), taken as (
                select r.id, w.* from requests r join wanted w on w.request_id = r.id
                where exists(select from held) and r.status = 'queued' and r.planner_epoch = :epoch
                    and (r.deadline_at is null or r.deadline_at >= statement_timestamp())
                for update of r
            ), sizes as (
                select n, count(*) as size, max(prefill) as length, max(remaining) as generation_length
                from taken group by n
            ), made as (
                select nextval('batches_id_seq') as batch_id, a.*, coalesce(s.size, 0) as size,
                    coalesce(s.length, 0) as length, coalesce(s.generation_length, 0) as generation_length
                from unnest(
                    cast(:n as int[]), cast(:workers as text[]), cast(:joins as bool[]), cast(:sealed as bool[]),
                    cast(:limits as int[]), cast(:most_rows as int[]), cast(:estimated_s as float8[]),
                    cast(:preempts as text[]),
                    cast(:models as text[])
                ) as a (n, worker, joins, sealed, iteration_limit, most_rows, estimated_s, preempts, model)
                left join sizes s using (n)
                where exists(select from held) and (s.size > 0 or a.preempts <> '')
            ), inserted as (
                insert into batches (id, worker, model, policy, joins, sealed, preempts, size, length,
                    predicted_generation_length, iteration_limit, most_rows, estimated_s, sent_at)
                select batch_id, worker, model, :policy, joins, sealed, string_to_array(preempts, ' '), size, length,
                    generation_length, iteration_limit, most_rows, estimated_s, clock_timestamp()
                from made
            ), updated as (
                update requests r set status = 'in_progress', batch_id = m.batch_id, attempts = r.attempts + 1,
                    generated_ids = r.generated_ids[1:t.generated], sealed_group = null
                from taken t join made m using (n) where r.id = t.id
            )
            select m.n, m.batch_id, array(select id from taken t where t.n = m.n) as request_ids
            from held left join made m on true order by m.n
        """,
        {
            "lead": lead.name,
            "fence": lead.fence,
            "epoch": epoch,
            "policy": policy,
            "request_ids": [request.id for _, request in wanted],
            "request_n": [n for n, _ in wanted],
            "generated": [request.generated for _, request in wanted],
            "prefills": [request.prefill for _, request in wanted],
            "remaining": [request.remaining for _, request in wanted],
            "n": list(range(len(assignments))),
            "workers": [assignment.worker for assignment in assignments],
            "joins": [assignment.joins for assignment in assignments],
            "sealed": [assignment.sealed for assignment in assignments],
            "limits": [assignment.iteration_limit for assignment in assignments],
            "most_rows": [assignment.most_rows for assignment in assignments],
            "estimated_s": [assignment.estimated_s for assignment in assignments],
            "preempts": [" ".join(assignment.preempts) for assignment in assignments],
            "models": [next((one.model for one in assignment.requests), None) for assignment in assignments],
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
