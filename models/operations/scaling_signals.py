"""Reads the demand for each model's workers, and stores the signals that `chores` computes from it for autoscalers."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from models.bulk.bulk_outlook import unended_work
from models.connections.sql import text
from models.planner_state import read_service_state, write_service_state
from models.planning.live_fleet import costed_workers, live_workers
from models.planning.queue_snapshot import read_queue_snapshot
from models.registered_workers import registered_workers
from models.tables import RequestStatus
from scheduling.forecast.wanted_workers import SHORTEST_ROW, Demand
from scheduling.policy import Worker
from scheduling.sharing.background.deadlines import Work

# Arrivals are counted over this many seconds: autoscalers decide about once in 15 to 30 s, and a load that ends before
# a worker has started is no reason to start one. Not tuned.
ARRIVALS_S = 120.0
# Requests of the tiers `flex` and `off_peak` have no deadline of their own; they are to be served within the usual
# window of a batch.
FLEX_WITHIN_S = 86_400.0
STALE_S = 120.0  # older signals are not shown, so that an autoscaler changes nothing; several times their usual age

# Both queries leave out lines of bulk jobs and what waits for a new budget, and group by the model whose workers serve
# a request. UNFINISHED reads unfinished requests, background requests apart; ARRIVED reads requests that arrived in the
# last ARRIVALS_S, without background requests.
UNFINISHED = text("""
    select model, tier <= 'flex' as flex, count(*) filter (where status = 'in_progress') as running,
        count(*) filter (where status = 'queued') as requests,
        coalesce(sum(prefill) filter (where status = 'queued'), 0)::bigint as prefill,
        coalesce(sum(remaining) filter (where status = 'queued'), 0)::bigint as remaining,
        coalesce(max(remaining) filter (where status = 'queued'), 0) as longest
    from (
        select coalesce(r.base, r.model) as model, r.tier, r.status,
            r.prompt_tokens + cardinality(r.generated_ids) as prefill, greatest(1,
            least(coalesce(r.predicted_tokens, r.limit_tokens), r.limit_tokens) - cardinality(r.generated_ids))
            as remaining
        -- the ids from an index and each row by its id, whatever the statistics say of how many are unfinished
        from (select id from requests where status in ('queued', 'in_progress')) as found cross join lateral (
            select * from requests where id = found.id offset 0
        ) as r where not r.held and r.job_id is null and (
            r.status = 'in_progress' or r.generated_ids <> '{}' or r.tenant <> all(:spent)
        )
    ) unfinished group by 1, 2
""")
ARRIVED = text("""
    select model, count(*) as requests, sum(prompt_tokens)::bigint as prompts, sum(answer)::bigint as answers
    from unnest(cast(:statuses as text[])) as state, lateral (
        select coalesce(base, model) as model, prompt_tokens,
            coalesce(output_tokens, predicted_tokens, limit_tokens) as answer
        from requests where status = state and arrived_at > statement_timestamp() - make_interval(secs => :back_s)
            and job_id is null and tier > 'flex' and tenant <> all(:spent)
    ) arrived group by 1
""")


@dataclass(frozen=True, slots=True)
class ScalingSignal:
    """The seconds for which a model's waiting work would keep one worker busy, and how many workers the model needs."""

    work_s: float
    wanted: int


def read_demands(session: Session) -> dict[str, Demand]:
    """Returns the present demand for each model's workers; models without requests are left out."""
    connection, snapshot = session.connection(), read_queue_snapshot(session)
    spent = [] if snapshot is None else list(snapshot.decisions.spent_tenants)
    waiting, running = dict[str, Work](), dict[str, int]()
    jobs: defaultdict[str, list[tuple[Work, float]]] = defaultdict(list)
    for row in connection.execute(UNFINISHED, {"spent": spent}):
        work = Work(row.requests, row.prefill, row.remaining, row.longest)
        if not row.flex:
            waiting[row.model], running[row.model] = work, row.running
        elif row.requests or row.running:
            jobs[row.model].append((work, FLEX_WITHIN_S))
    for one in unended_work(connection):
        if one.model is not None and one.work.requests and one.job.tenant not in spent:
            jobs[one.model].append((one.work, one.left_s))
    statuses = [status.value for status in RequestStatus]
    values = {"statuses": statuses, "back_s": ARRIVALS_S, "spent": spent}
    arrived = {row.model: row for row in connection.execute(ARRIVED, values)}
    demands = {}
    for model in dict.fromkeys([*arrived, *waiting, *jobs]):
        came, left = arrived.get(model), waiting.get(model, Work())
        if came is not None:
            rate, arriving = came.requests / ARRIVALS_S, Work(came.requests, came.prompts, came.answers).typical_row
        else:
            rate, arriving = 0.0, left.typical_row if left.requests else SHORTEST_ROW
        demands[model] = Demand(rate, arriving, left, running.get(model, 0), jobs.get(model, ()))
    return demands


def read_workers(connection: Connection, alive_s: float) -> dict[str, list[Worker]]:
    """Returns each model's workers of known costs: those that may get batches and live, else all stored ones."""
    return {**costed_workers(registered_workers(connection)), **costed_workers(live_workers(connection, alive_s))}


def write_signals(connection: Connection, signals: Mapping[str, ScalingSignal]) -> None:
    """Stores the signals of all models in place of the last ones."""
    write_service_state(connection, "scaling", {model: asdict(signal) for model, signal in signals.items()})


def read_signals(session: Session) -> dict[str, ScalingSignal]:
    """Returns the last signals by model, or {} if they are older than STALE_S."""
    stored = read_service_state(session.connection(), "scaling", STALE_S)
    return {model: ScalingSignal(**signal) for model, signal in (stored or {}).items()}
