"""What must hold in every simulation: at each look, and once nothing fails any more."""

from models.upkeep.invariants import INVARIANTS
from tests.simulation.actors import World
from tests.simulation.scripted_engine import POISON, true_answer
from tests.simulation.service import PRIORITY_REQUESTS, Asked, Service
from tests.simulation.side_work import TENANT

OF_THE_PRODUCT = ("no request is in two batches, or in an ended one", "no result without a batch")
ALWAYS = {
    **{one.name: one.query for one in INVARIANTS if one.name in OF_THE_PRODUCT},
    "quota": f"""
        select tenant || ' has ' || count(*) || ' priority requests' from requests
        where status in ('queued', 'in_progress') and tier = 'priority' group by tenant
        having count(*) > {PRIORITY_REQUESTS}""",
    "watched": "select what from broken",
    "lines are paused with their job": """
        select r.id from bulk_jobs j join bulk_lines l on l.job_id = j.id join requests r on r.id = l.request_id
        where not j.untold and j.status in ('validating', 'in_progress') and r.status = 'queued'
            and r.held <> (j.paused_at is not null)""",
    "ends have instants": """
        select id from requests where (finished_at is null) <> (status in ('queued', 'in_progress'))""",
}
AT_THE_END = {
    "every batch ends": "select id || ' is ' || status from batches where status in ('assigned', 'running')",
    "usage equals what was served": """
        with served as (
            select tenant, count(*) as requests, sum(prompt_tokens) filter (where twin_of is null) as prompt,
                sum(output_tokens) filter (where twin_of is null) as answer
            from requests where output_tokens is not null and status <> 'failed' group by tenant
        ), used as (
            select tenant, sum(prompt_tokens) as prompt, sum(answer_tokens) as answer, sum(requests) as requests
            from (select tenant, prompt_tokens, answer_tokens, requests from usage_entries
                union all select tenant, prompt_tokens, answer_tokens, requests from usage_days) every group by tenant
        )
        select coalesce(s.tenant, u.tenant) || ': served ' || coalesce(s.answer, 0) || ', counted '
            || coalesce(u.answer, 0)
        from served s full join used u using (tenant)
        where (coalesce(s.prompt, 0), coalesce(s.answer, 0), coalesce(s.requests, 0))
            <> (coalesce(u.prompt, 0), coalesce(u.answer, 0), coalesce(u.requests, 0))""",
}
STOPPED = "select name from workers where name = any(%s) and stopped_at is not null"
OF_JOBS = {
    "every delivery ends": "select event_id from webhook_deliveries where next_attempt_at is not null",
    "a completed job has all its lines": """
        select j.id || ' has ' || count(l.line) || ' of ' || j.lines || ' lines' from bulk_jobs j
        left join bulk_lines l on l.job_id = j.id where j.status = 'completed' group by j.id
        having count(l.line) <> j.lines""",
    "each line has a request of its own": """
        select job_id || ' line ' || line from bulk_lines where request_id is null or request_id in (
            select request_id from bulk_lines group by request_id having count(*) > 1)""",
    "the counts of a job equal its lines": """
        select j.id || ' counts ' || j.completed || ' and ' || j.failed from bulk_jobs j where status = 'completed'
            and (completed, failed) <> (select count(*) filter (where r.status in ('completed', 'incomplete')),
                count(*) filter (where r.status not in ('completed', 'incomplete'))
                from bulk_lines l join requests r on r.id = l.request_id where l.job_id = j.id)""",
    "no line outlives its job": """
        select r.id from requests r join bulk_jobs j on j.id = r.job_id where r.status in ('queued', 'in_progress')
            and j.status in ('completed', 'failed', 'cancelled', 'expired')""",
    "every request of a job is a line": """
        select id from requests where job_id is not null and id not in (
            select request_id from bulk_lines where request_id is not null)""",
}


# An engine computes a request only in the batch in which it is in progress, unless that batch is not its worker's any
# more: otherwise a second engine may compute it, too.
COMPUTED = """
    select request.id || ' is ' || request.status || ' while ' || computing.worker || ' computes it'
    from unnest(%s::text[], %s::text[]) as computing (worker, id) join requests request using (id)
    cross join lateral (select max(batch) as batch from claimed where claimed.request = computing.id
        and (select b.worker from batches b where b.id = batch) = computing.worker) as last
    join batches on batches.id = last.batch and batches.status = 'running'
    where (request.status, request.batch_id) is distinct from ('in_progress', last.batch)
        and request.finished_at is null
"""


def check_now(service: Service) -> None:
    """Fails if an invariant that holds at every instant is broken."""
    world, server = service.world, service.world.server
    _check(world, ALWAYS)
    if computing := service.computing():
        for (found,) in server.sql(COMPUTED, [list(column) for column in zip(*computing, strict=True)]):
            world.fail(found)


def _check(world: World, queries: dict[str, str]) -> None:
    parts = (f"select '{name}: ' || found from ({query}) as one (found)" for name, query in queries.items())
    for (found,) in world.server.sql(" union all ".join(parts)):
        world.fail(found)


def check_at_the_end(service: Service) -> None:
    """Fails unless every accepted request has ended once, with its true answer, and the books agree."""
    world, server = service.world, service.world.server
    stored = {
        row[0]: row
        for row in server.sql(
            """select id, idempotency_key, status, output_text, finish_reason, error->>'code', error->>'message', job_id
            from requests"""
        )
    }
    for asked in service.asked:
        _check_request(world, asked, stored)
    known = {asked.id for asked in service.asked}  # a failed request's key is free for another one
    for stored_id, row in stored.items():
        if stored_id not in known and row[-1] is None and row[2] != "failed":
            world.fail(f"{stored_id} is a second request of one key")
    for job in service.chores.jobs:
        if job.ended is None:
            world.fail(f"job {job.id} waits for ever")
        elif job.cancelled and job.ended != "cancelled":
            world.fail(f"job {job.id} was cancelled and is {job.ended}")
    for (name,) in server.sql(STOPPED, (list(service.broker.workers),)):
        world.fail(f"{name} lives and counts as stopped")
    if not world.failures:
        _check(world, AT_THE_END)
    if world.scenario.jobs and not world.failures:
        _check(world, OF_JOBS)
        _check_webhooks(service)


def _check_webhooks(service: Service) -> None:
    """Fails unless each event arrived, and no other one."""
    world, server = service.world, service.world.server
    due = {row[0] for row in server.sql("select 'evt_' || substr(id, 6) from requests where tenant = %s", (TENANT,))}
    lines = {row[0] for row in server.sql("select 'evt_' || substr(id, 6) from requests where job_id is not null")}
    due = (due - lines) | {f"evt_{job.id[6:]}" for job in service.chores.jobs if job.id}
    received = set(service.chores.received)
    for event in sorted(due ^ received):
        world.fail(f"event {event} {'did not arrive' if event in due else 'has no object'}")


def _check_request(world: World, asked: Asked, stored: dict[str, tuple[object, ...]]) -> None:
    name = f"{asked.key} ({asked.id})"
    if asked.id is None or asked.ended is None:
        found = world.server.sql("select to_jsonb(r) - 'body' - 'eta' from requests r where id = %s", (asked.id,))
        told = {key: value for key, value in found[0][0].items() if value} if found else "not stored"
        return world.fail(f"{name} waits for ever: {told}")
    _, key, status, text, reason, code, message, _ = stored[asked.id]
    answer, limit = true_answer(asked.new.input), asked.new.limit_tokens
    broken = {
        "lost its key": key != asked.key,
        "ended otherwise before": status != asked.ended,
        "was cancelled": asked.cancelled and status != "cancelled",
        "has another answer": status == "completed" and (text, reason) != (answer, "eos"),
        "was cut off elsewhere": status == "incomplete" and (text, reason) != (answer[:limit], "limit"),
        "was cancelled by nobody": status == "cancelled" and not asked.cancel_sent,
        "had no reason to fail": status == "failed" and not _may_fail(world, asked, code, str(message)),
    }
    for what, holds in broken.items():
        if holds:
            world.fail(f"{name} {what}: {status}, {text} of {answer[:limit]}, {reason}, {code}, {message}")
    return None


def _may_fail(world: World, asked: Asked, code: object, message: str) -> bool:
    if code == "deadline_exceeded":
        return asked.new.deadline_s is not None
    if code == "server_error":
        return POISON in asked.new.input or "worker was lost" in message or asked.id in world.failed_alone
    return code in ("context_length_exceeded", "out_of_memory") and len(asked.new.input) > 100
