"""Invariants of a healthy service's database; the query of each finds its violations.

`magnus doctor` runs them on a live service. They lock nothing and are short: each reads only unfinished requests and
open batches, or an index that is empty in a healthy service, or answers of the last hour.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection

from models.connections.database_errors import DISK_FULL
from models.connections.sql import text
from models.operations import process_heartbeats
from models.operations.fleet_use import ASK_THE_SAME, EMPTY_ANSWERS
from models.registered_workers import REPAIR_ENGINE
from models.tables import FOLLOWING, LEADING, TO_SHARE

PROCESS_RUNS, PROCESS_WORKS = OF_PROCESSES = "every process runs", "every process works"
SHOWN = 5  # the most violations that a finding names, so that it fits one line
# A clock that is further off makes log lines of several hosts hard to compare; nothing else depends on it. Not tuned.
CLOCK_OFF_S = 2.0


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant: the number of violations, the first ones by name, and the remedy."""

    invariant: str
    count: int
    examples: tuple[str, ...]
    remedy: str


@dataclass(frozen=True, slots=True)
class Invariant:
    """A query that finds violations; each row names one."""

    name: str
    query: str
    remedy: str
    cheap: bool = True  # cheap enough for a page that is open all day and repeats the query


# The planner's last snapshot, if it was written in the last ten seconds.
LATELY = "service_state where name = 'planner' and updated_at > clock_timestamp() - interval '10 s'"
REFUSED = "value->'decisions'->>'broker_error' is not null"
INVARIANTS = (
    Invariant(
        "planning goes on",
        """select 'planning is paused since ' || to_char(updated_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI') || ' UTC'
            from service_state where name = 'pause' and (value->>'paused')::bool""",
        "resume it on the dashboard's page Queue",
    ),
    Invariant(
        "the planner plans",
        # a planner that does not run breaks the invariant PROCESS_RUNS instead
        f"""select 'a planner runs and has planned nothing for ten seconds' where not exists (select from {LATELY})
            and exists (select from process_heartbeats where kind = 'planner' and failure is null
                and heartbeat_at > clock_timestamp() - interval '{process_heartbeats.SILENT_AFTER_S} s')""",  # noqa: S608  # constants
        "look into its log, and at the load of its host and of Postgres: its steps take longer than that",
    ),
    Invariant(
        "the broker takes messages",
        f"select value->'decisions'->>'broker_error' from {LATELY} and {REFUSED}",  # noqa: S608  # a constant
        "make it take writes again (memory, disk, rights, a primary); what was not sent is sent then",
    ),
    Invariant(
        "a worker takes batches",
        """select 'no worker is alive, or each is drained or set aside' where not exists (
            select from workers where stopped_at is null and drained_at is null and report->>'fault' is null
                and heartbeat_at > statement_timestamp() - make_interval(secs => :grace_s))""",
        "start one with `magnus worker`, or everything with `magnus up`; drained ones are resumed on the page Workers",
    ),
    Invariant(
        "every engine works",
        """select 'worker ' || name || ' is set aside (' || (report->>'fault') || ')' from workers
            where report->>'fault' is not null and stopped_at is null
            and heartbeat_at > statement_timestamp() - make_interval(secs => :grace_s)""",
        REPAIR_ENGINE,
    ),
    Invariant(
        "every engine answers",
        f"select 'worker ' || worker || ' answers with nothing (' || empty || ')' from ({EMPTY_ANSWERS}) as of_worker",  # noqa: S608  # a constant
        ASK_THE_SAME,
    ),
    Invariant(
        "every model has a worker",
        f"""select model || ', ' || (state->>'unserved') || ' requests wait'
            from (select value->'models' as models from {LATELY}) as planner, jsonb_each(models) as one(model, state)
            where (state->>'unserved')::int > 0""",  # noqa: S608  # a constant
        "start a worker of that model, or `magnus requests move` or `cancel` its requests",
    ),
    Invariant(
        "no lease is orphaned",
        # such a batch runs long after its lease ended, because no planner took it back
        """select 'batch ' || b.id || ' on ' || b.worker from batches b
            where b.status = 'running' and b.lease_until < statement_timestamp() - make_interval(secs => :grace_s)""",
        "start a planner, or look for `step failed` in its log: it takes such batches back",
    ),
    Invariant(
        "no request is in two batches, or in an ended one",
        # A request has only one batch_id, so a request in two batches shows in one of two ways: the batch of its
        # batch_id has ended, or a batch has more requests than it was made with.
        """select 'request ' || r.id || ' in batch ' || coalesce(r.batch_id::text, 'none')
            from requests r left join batches b on b.id = r.batch_id
            where r.status = 'in_progress' and (b.id is null or b.status not in ('assigned', 'running'))
            union all
            select 'batch ' || b.id || ' with ' || n.now || ' of ' || b.size || ' requests' from batches b
            join lateral (select count(*) as now from requests r
                where r.batch_id = b.id and r.status = 'in_progress') n on n.now > b.size
            where b.status in ('assigned', 'running')""",
        "keep the database as it is and report it: this is an error of Magnus. Cancelling the requests frees them",
    ),
    Invariant(
        "no result without a batch",
        """select 'request ' || r.id from requests r
            where r.finished_at > statement_timestamp() - interval '1 h' and r.status in ('completed', 'incomplete')
                and r.batch_id is null""",
        "find out what else writes into this database: Magnus records an answer only for a batch",
    ),
    Invariant(
        "every twin waits for a request",
        # one look-up a group; the planner gives a group whose request ended another one, or its answer
        f"""select 'request ' || f.id from (
                select distinct on (tenant, twin_sha256) id, tenant, twin_sha256 from requests where {FOLLOWING}
                order by tenant, twin_sha256, arrived_at, id
            ) f where not exists (
                select from requests l where l.tenant = f.tenant and l.twin_sha256 = f.twin_sha256 and {LEADING}
            ) and not exists (
                select from requests l where l.tenant = f.tenant and l.twin_sha256 = f.twin_sha256 and {TO_SHARE}
            )""",  # noqa: S608  # constants
        "keep the database as it is and report it: this is an error of Magnus. `magnus requests move` frees them",
    ),
    Invariant(
        "every batch starts",
        # while the broker refuses messages, a batch that does not start is no worker's fault
        f"""select 'batch ' || b.id || ' on ' || b.worker || ', sent ' || b.sends || ' times' from batches b
            where b.status = 'assigned' and b.assigned_at < statement_timestamp() - make_interval(secs => :grace_s)
                and not exists (select from {LATELY} and {REFUSED})""",  # noqa: S608  # a constant
        "look at that worker: it must reach the planner's MAGNUS_REDIS_URL; without a planner nothing is taken back",
    ),
    Invariant(
        "no worker is stale",
        """select w.name || ', silent for ' || round(extract(epoch from clock_timestamp() - w.heartbeat_at)) || ' s'
            from workers w where w.stopped_at is null
                and w.heartbeat_at < statement_timestamp() - make_interval(secs => :grace_s)""",
        "start the worker again, or stop it with SIGTERM so that it signs off; it is forgotten after a day",
    ),
    Invariant(
        "every worker takes its messages",
        "select name from workers where not_consuming_since is not null",
        "give it the planner's MAGNUS_REDIS_URL and restart it; it gets batches again as soon as a message reaches it",
    ),
    Invariant(
        "clocks agree",
        """select kind || ' ' || instance || ', ' || round(clock_ahead_s::numeric, 1) || ' s ahead'
            from process_heartbeats where abs(clock_ahead_s) > :clock_off_s
                and heartbeat_at > statement_timestamp() - make_interval(secs => :grace_s)
            union all
            select 'worker ' || name || ', ' || (report->>'clock_ahead_s') || ' s ahead'
            from workers where abs((report->>'clock_ahead_s')::int) > :clock_off_s and stopped_at is null
                and heartbeat_at > statement_timestamp() - make_interval(secs => :grace_s)""",
        "synchronise the host's clock (NTP), so that its log lines can be compared with others'",
    ),
    Invariant(
        "every model in service has its bytes",
        "select version from model_versions where active and encode(sha256(stored), 'hex') <> encode(sha256, 'hex')",
        "put an older version into service: `magnus learned activate VERSION`",
        cheap=False,  # it reads every byte of the models
    ),
)


def violations(connection: Connection, grace_s: float, *, only_cheap: bool = False) -> Iterator[Violation]:
    """Yields the broken invariants; a fault that heals by itself counts after `grace_s` seconds, at least a lease."""
    parameters = {"grace_s": grace_s, "clock_off_s": CLOCK_OFF_S}
    for invariant in INVARIANTS:
        if only_cheap and not invariant.cheap:
            continue
        used = {name: value for name, value in parameters.items() if f":{name}" in invariant.query}
        names = [str(name).rstrip(".") for (name,) in connection.execute(text(invariant.query), used)]
        if names:
            yield Violation(invariant.name, len(names), tuple(sorted(names)[:SHOWN]), invariant.remedy)
    processes = process_heartbeats.processes(connection)
    for problem in process_heartbeats.missing(processes):
        kind = problem.split()[1]
        yield Violation(PROCESS_RUNS, 1, (problem,), f"start a {kind} process, or look into its log")
    for one in process_heartbeats.failing(processes):
        fault, remedy = one.failure, "remove the cause; the traceback is in its log"
        if fault == DISK_FULL:
            fault, remedy = DISK_FULL.split("; ")
        yield Violation(PROCESS_WORKS, 1, (f"the steps of {one.kind} {one.instance} fail: {fault}",), remedy)
