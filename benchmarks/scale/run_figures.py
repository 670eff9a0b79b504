"""Reads the figures of a run from the database, and simulates the same run.

The database gives throughput, response times, and how long workers ran nothing while requests waited. The simulator
gets the same requests, instants, predictions and lengths. Its figures differ by what it does not simulate: messages,
transactions, processes that wait for a CPU.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, text

from benchmarks.live.fresh_service import of_variant
from benchmarks.published_costs import Machine
from scheduling.chosen_parameters import PUBLISHED_THRESHOLD
from scheduling.request import Request
from scheduling.sharing.policy_factory import PolicySettings, make_policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate

SERVED = text("""
    with served as (
        select extract(epoch from arrived_at)::float8 as arrived, extract(epoch from finished_at)::float8 as finished
        from requests where arrived_at >= to_timestamp(:since) and status = 'completed'
    ), arrivals as (
        select min(arrived) + (max(arrived) - min(arrived)) / 3 as began, max(arrived) as ended,
            (count(*) - 1) / nullif(max(arrived) - min(arrived), 0) as per_s
        from served
    )
    select count(*) as requests, (select per_s from arrivals) as accepted_per_s,
        count(*) filter (where finished > began and finished <= ended) / nullif(max(ended - began), 0) as served_per_s,
        avg(finished - arrived)::float8 as mean,
        percentile_cont(array[0.5, 0.99]) within group (order by finished - arrived) as percentiles
    from served, arrivals
""")

# A request counts as waiting from a quarter of a second after its arrival, because until then it is predicted, planned
# and sent. A worker is busy while any batch of its own runs.
IDLE = text("""
    with busy as (
        select worker, unnest(range_agg(tstzrange(started_at, finished_at))) as span
        from batches where started_at >= to_timestamp(:since) and finished_at > started_at group by worker
    ), waits as (
        select unnest(range_agg(tstzrange(arrived_at + interval '0.25 s', started_at))) as span from requests
        where arrived_at >= to_timestamp(:since) and started_at > arrived_at + interval '0.25 s'
    ), worked as (
        select b.span * w.span as span from busy b join waits w on b.span && w.span
    )
    select
        (select coalesce(sum(extract(epoch from upper(span) - lower(span))), 0)::float8 from waits) as waited_s,
        (select coalesce(sum(extract(epoch from upper(span) - lower(span))), 0)::float8 from worked) as busy_s,
        (select count(*) from batches where started_at >= to_timestamp(:since)) as batches
""")


def served_since(connection: Connection, since: float) -> dict[str, Any]:
    """Return number, rates and response times (seconds) of the served requests that arrived at `since` or later.

    `served_per_s` is the rate of answers from a third of the arrivals' time until the last arrival, so that neither the
    start nor the end of the run lowers it.
    """
    row = connection.execute(SERVED, {"since": since}).one()
    return {
        "requests": row.requests,
        "served_per_s": round(float(row.served_per_s or 0.0), 2),
        "accepted_per_s": round(float(row.accepted_per_s or 0.0), 2),
        "response_s": {
            "mean": round(row.mean, 3),
            "p50": round(row.percentiles[0], 3),
            "p99": round(row.percentiles[1], 3),
        },
    }


def idle_since(connection: Connection, since: float, workers: int) -> dict[str, Any]:
    """Return the share of the workers' time in which they were idle while a request waited; None if no request did."""
    row = connection.execute(IDLE, {"since": since}).one()
    waited_s = workers * row.waited_s
    return {
        "batches": row.batches,
        "waited_s": round(row.waited_s, 2),
        "idle_while_waiting": round(1 - row.busy_s / waited_s, 4) if waited_s else None,
    }


TICK_S = 0.06  # seconds between two steps of a planner (`tasks/planning/planner_loop.py:JOINING_INTERVAL_S`)

COMPLETED = text("""
    select id, application, tenant, prompt_tokens, limit_tokens, predicted_tokens, predicted_upper_tokens,
        output_tokens, extract(epoch from arrived_at)::float8 as arrived_at,
        extract(epoch from finished_at)::float8 as finished_at
    from requests where status = 'completed' and arrived_at >= to_timestamp(:since) order by arrived_at, id
""")


def compared(
    connection: Connection, policy: str, machine: Machine, workers: int, since: float, headroom: float = 0.0
) -> dict[str, Any]:
    """Compare throughput and response times of the requests served since that instant with their simulation."""
    rows = connection.execute(COMPLETED, {"since": since}).all()
    first = rows[0].arrived_at
    arrivals = [
        Arrival(
            Request(
                id=row.id,
                arrived_at=row.arrived_at - first,
                length=row.prompt_tokens,
                limit=row.limit_tokens,
                predicted=row.predicted_tokens,
                predicted_upper=row.predicted_upper_tokens,
                application=row.application,
                tenant=row.tenant,
            ),
            row.output_tokens,
        )
        for row in rows
    ]
    threshold = PUBLISHED_THRESHOLD if policy == "magnus-published" else None
    settings = PolicySettings(1024, 1024, threshold, slice_tokens=None, reserves_upper=threshold is None)
    policy_object = make_policy(of_variant(policy)[0], settings)
    fleet = [Instance(f"w{number}", machine.memory) for number in range(workers)]
    tick_s = TICK_S if policy_object.mode == "continuous" else 0.0
    costs = EngineCosts(machine.curves, headroom=headroom)
    trace = simulate(policy_object, arrivals, fleet, costs, seed=0, tick_s=tick_s)
    served = np.array([row.finished_at - row.arrived_at for row in rows])
    seconds = max(row.finished_at for row in rows) - first
    service = figures(len(rows) / seconds, served)
    simulated = figures(trace.requests_per_s, np.array([answer.response_s for answer in trace.answers.values()]))
    off = {name: round(service[name] / simulated[name] - 1, 4) for name in service}
    return {"service": service, "simulator": simulated, "service_over_simulator": off}


def figures(requests_per_s: float, response_s: npt.NDArray[np.float64]) -> dict[str, float]:
    """Return throughput, and mean and percentiles of the response times, rounded to four digits."""
    p50, p99 = np.percentile(response_s, (50, 99)).tolist()
    return {
        "requests_per_s": round(requests_per_s, 4),
        "mean": round(float(response_s.mean()), 4),
        "p50": round(p50, 4),
        "p99": round(p99, 4),
    }
