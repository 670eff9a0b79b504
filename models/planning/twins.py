"""Twins: equal requests of a tenant that wait at the same time are computed once, and each gets the answer.

Requests with the same `twin_sha256` are a group. The planner, which is alone, sees each new request: the first of a
group leads and is served as any other, later ones follow: they wait with `twin_of` set, and no policy gets them. The
link locks the row of the leader, so that whoever ends it later sees that it is `shared`. `share_answers` then gives its
answer to the followers, a bounded number at once; if it was cancelled or too late, the first follower leads instead (a
trigger does the same when it is deleted); if it failed, each follower is computed by itself. A follower that is
cancelled or late ends as any other queued request.
"""

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any

from sqlalchemy import Connection

from models.connections.sql import run
from models.tables import FOLLOWING, LEADING, TO_SHARE
from models.tenants.usage import TIER

# Requests that one step of the planner answers, and stored bytes that it writes: some hundredths of a second. Not
# tuned.
SHARED_AT_ONCE, MOST_BYTES = 1000, 2**24
LEADERS_AT_ONCE = 200  # ended requests whose twins are looked up in one step

# A leader that another transaction has locked is about to change: its twin is then computed by itself. Waiting for the
# lock could end in a deadlock. A twin follows no request that may end at a later deadline.
FOLLOW = f"""
    with fresh as materialized (
        select id, tenant, twin_sha256, coalesce(deadline_at, 'infinity') as ends_at from requests
        where id = any(cast(:ids as text[])) and twin_of is null and not shared and generated_ids = '{{}}'
            and sealed_group is null and suspect_group is null
    ), firsts as materialized (
        select first.id from (
            select tenant, twin_sha256, count(*) as number, min(id) as one from fresh group by tenant, twin_sha256
        ) as g cross join lateral (
            select id from requests
            where tenant = g.tenant and twin_sha256 = g.twin_sha256 and {LEADING} and cancel_requested_at is null
            order by arrived_at, id limit 1
        ) as first where g.number > 1 or g.one <> first.id
    ), leaders as materialized (
        select id, tenant, twin_sha256, coalesce(deadline_at, 'infinity') as ends_at from requests
        where id = any(array(select id from firsts)) and {LEADING} and cancel_requested_at is null
        for update skip locked
    ), followers as materialized (
        select f.id, l.id as leader from fresh f join leaders l using (tenant, twin_sha256)
        where f.id <> l.id and l.ends_at <= f.ends_at
    ), marked as (
        update requests set shared = true where id = any(array(select leader from followers)) and not shared
    )
    update requests r set twin_of = f.leader from followers f where r.id = f.id returning r.id
"""  # noqa: S608  # constants

SIZE = "coalesce(pg_column_size(output_text), 0) + coalesce(pg_column_size(logprobs), 0)"
ENDED = f"""
    select id, {SIZE} as bytes, case when status in ('completed', 'incomplete') then 'answered'
        when status = 'failed' and error->>'code' <> 'deadline_exceeded' then 'failed' else 'gone' end as how
    from requests where {TO_SHARE} order by finished_at limit :most for update skip locked
"""  # noqa: S608  # constants

# The followers of the ended requests `l` with these ids, at most `most` in all.
FOLLOWERS = f"""
    requests l cross join lateral (
        select id from requests where tenant = l.tenant and twin_sha256 = l.twin_sha256 and {FOLLOWING}
        order by arrived_at, id limit {{most}} for update skip locked
    ) as f where l.id = any(cast(:ids as text[]))
"""  # noqa: S608  # a constant
# The twin has no times before its own arrival; its prompt was computed for another request, and so was its answer.
ANSWER = f"""
    with answers as materialized ( -- once: a plan that read it again would find further followers
        select f.id as follower, l.*, l.status <> 'completed' as cut_off
        from {FOLLOWERS.format(most=":each")} limit :most
    ), ended as (
        update requests r /* complete, cut_off */ set
            status = case when a.cut_off then 'incomplete' else 'completed' end,
            output_text = a.output_text, output_tokens = a.output_tokens, finish_reason = a.finish_reason,
            stop_string = a.stop_string, logprobs = a.logprobs, reasoning_tokens = a.reasoning_tokens,
            cached_tokens = r.prompt_tokens, batch_id = a.batch_id, twin_of = a.id,
            started_at = greatest(a.started_at, r.arrived_at),
            first_token_at = greatest(a.first_token_at, r.arrived_at), finished_at = clock_timestamp()
        from answers a where r.id = a.follower and r.status = 'queued'
        returning r.id, (r.finished_at at time zone 'UTC')::date as day, r.tenant, r.model, {TIER} as tier
    ), counted as (
        insert into usage_entries (day, tenant, model, tier, requests, prompt_tokens, answer_tokens, gpu_s)
        select day, tenant, model, tier, count(*), 0, 0, 0 from ended group by day, tenant, model, tier
    )
    select id from ended
"""  # noqa: S608  # constants
COMPUTE_EACH = f"""
    update requests set twin_of = null, twin_sha256 = null, planner_epoch = 0
    where id = any(array(select f.id from {FOLLOWERS.format(most=":most")} limit :most))
"""  # noqa: S608  # constants
LET_THE_NEXT_LEAD = f"""
    update requests set twin_of = null, planner_epoch = 0, shared = true
    where id = any(array(select f.id from {FOLLOWERS.format(most="1")}))
"""  # noqa: S608  # constants
# A request whose followers have another one to wait for is told, too.
TOLD = f"""
    update requests l set shared = false where l.id = any(cast(:ids as text[])) and (
        not exists (
            select from requests where tenant = l.tenant and twin_sha256 = l.twin_sha256 and {FOLLOWING}
        ) or l.id = any(cast(:gone as text[])) and exists (
            select from requests
            where tenant = l.tenant and twin_sha256 = l.twin_sha256 and {LEADING} and shared
        )
    )
"""  # noqa: S608  # constants


def follow(connection: Connection, fetched: Collection[str]) -> set[str]:
    """Lets requests of these that the planner fetched just now follow earlier equal ones; returns their ids."""
    if not fetched:
        return set()
    return {row.id for row in run(connection, FOLLOW, {"ids": list(fetched)})}


def share_answers(connection: Connection, most: int = SHARED_AT_ONCE) -> list[str]:
    """Tells at most `most` followers how their leaders ended; returns the ids of those that are answered."""
    ended = run(connection, ENDED, {"most": LEADERS_AT_ONCE})
    if not ended:
        return []
    which = {how: [row.id for row in ended if row.how == how] for how in ("failed", "gone")}
    answered = _answer(connection, [row for row in ended if row.how == "answered"], most)
    if which["failed"]:
        run(connection, COMPUTE_EACH, {"ids": which["failed"], "most": most})
    if which["gone"]:
        run(connection, LET_THE_NEXT_LEAD, {"ids": which["gone"]})
    run(connection, TOLD, {"ids": [row.id for row in ended], "gone": which["gone"]})
    return answered


def _answer(connection: Connection, leaders: Sequence[Any], most: int) -> list[str]:
    """Answers followers of the first of these ended requests, of one request at least, as far as MOST_BYTES allows."""
    sizes = accumulate(row.bytes for row in leaders)
    first = [row for row, size in zip(leaders, sizes, strict=True) if size <= MOST_BYTES] or leaders[:1]
    if not first:
        return []
    each = MOST_BYTES // (1 + sum(row.bytes for row in first))
    values = {"ids": [row.id for row in first], "most": most, "each": max(1, min(most, each))}
    return [row.id for row in run(connection, ANSWER, values)]
