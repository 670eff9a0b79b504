"""Reads the service's last minutes for the policy lab, which simulates them: requests, workers, measured figures."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from models.connections.sql import text
from models.planner_state import planner_inputs
from models.planning.live_fleet import live_workers
from models.registered_workers import RegisteredWorker
from scheduling.request import Request
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.policy_lab import AnswerTimes, LabFigures, ServedWork, figures_of
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival

# A window holds at most this many requests, the newest ones; to simulate them takes seconds for each policy.
MOST_REQUESTS = 5000


class NothingToPlay(Exception):
    """No request of the window was answered, or no worker has learned its costs; the message says which."""


@dataclass(frozen=True, slots=True)
class MeasuredWork:
    """The work of one model, its measured figures, and the policy in force (None means the planner's default)."""

    model: str
    policy: str | None
    work: ServedWork
    measured: LabFigures
    window_s: float  # shorter than asked for if more than MOST_REQUESTS were answered in it


def measured_work(connection: Connection, window_s: float, alive_s: float, most: int = MOST_REQUESTS) -> MeasuredWork:
    """Returns the last `window_s` seconds' work of the model with the most answers among those of live workers.

    Reads the newest `most` answers; the figures leave out requests from before the window. Raises NothingToPlay.
    """
    inputs = planner_inputs(connection)
    rows = connection.execute(
        text("""
            select id, coalesce(base, model) as model, tenant, application, prompt_tokens, limit_tokens,
                predicted_tokens, predicted_upper_tokens, output_tokens, tier, priority,
                extract(epoch from arrived_at)::float8 as arrived_at,
                extract(epoch from started_at)::float8 as started_at,
                extract(epoch from finished_at)::float8 as finished_at
            from requests where finished_at > statement_timestamp() - make_interval(secs => :window_s)
                and status in ('completed', 'incomplete')
            order by finished_at desc limit :most
        """),
        {"window_s": window_s, "most": most},
    ).all()
    known = [row for row in rows if row.predicted_tokens is not None and row.output_tokens]
    if not known:
        raise NothingToPlay(f"no request was answered in the last {window_s:,.0f} s")
    engines = [(worker, one) for worker in live_workers(connection, alive_s) if (one := _engine(worker)) is not None]
    models = [row.model for row in known if row.model in {worker.model for worker, _ in engines}]
    if not models:
        named = ", ".join(sorted({row.model for row in known}))
        raise NothingToPlay(f"no live worker of {named} has learned how long its steps take")
    model = max(sorted(set(models)), key=models.count)
    fleet = [(worker, engine) for worker, engine in engines if worker.model == model]
    began_at = inputs.now - window_s if len(rows) < most else rows[-1].finished_at
    of_model = [row for row in known if row.model == model]
    counted = sorted((row for row in of_model if row.arrived_at >= began_at), key=lambda row: (row.arrived_at, row.id))
    if not counted:
        raise NothingToPlay(f"no request both arrived and was answered in the last {inputs.now - began_at:,.0f} s")
    work = ServedWork(
        arrivals=[_arrival(row, began_at) for row in of_model],
        counted={row.id: _times(row, fleet[0][1]) for row in counted},
        fleet=[Instance(worker.name, worker.memory, engine=engine) for worker, engine in fleet],
        costs=fleet[0][1],
        rank_correlation=inputs.rank_correlation,
        weights=inputs.weights,
    )
    measured = figures_of(work.counted.values(), len(counted))
    return MeasuredWork(model, inputs.policy, work, measured, inputs.now - began_at)


def _arrival(row: Row[Any], began_at: float) -> Arrival:
    """Returns the request with its predicted length, and the true length of its answer."""
    request = Request(
        id=row.id,
        arrived_at=max(0.0, row.arrived_at - began_at),
        length=row.prompt_tokens,
        limit=row.limit_tokens,
        predicted=row.predicted_tokens,
        predicted_upper=row.predicted_upper_tokens,
        tier=row.tier,
        priority=row.priority,
        tenant=row.tenant,
        application=row.application,
    )
    return Arrival(request, min(row.output_tokens, row.limit_tokens))


def _times(row: Row[Any], engine: EngineCosts) -> AnswerTimes:
    started_at = row.arrived_at if row.started_at is None else row.started_at
    alone_s = engine.curves.serve_s(1, row.prompt_tokens, row.output_tokens)
    return AnswerTimes(row.arrived_at, started_at, row.finished_at, row.output_tokens, alone_s)


def _engine(worker: RegisteredWorker) -> EngineCosts | None:
    """Returns the costs of the engine's steps that the worker has learned, or None if it has learned none yet."""
    if worker.curves is None:
        return None
    curves = worker.curves.curves
    return EngineCosts(curves) if curves.decode_step_s(1, 1) > 0 else None
