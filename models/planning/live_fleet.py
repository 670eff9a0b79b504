"""Reads the fleet for the planner: live workers, open batches, and the outcomes of ended batches."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from models.connections.sql import run, text
from models.registered_workers import RegisteredWorker, registered_workers, told_apart
from models.stored_values import to_json
from scheduling.costs import ProfiledCurves
from scheduling.policy import Worker


@dataclass(frozen=True, slots=True)
class Lacking:
    """The abilities that engines of one model lack: all engines lack those in `all`, only some those in `some`."""

    all: frozenset[str] = frozenset()
    some: frozenset[str] = frozenset()

    def explains(self, lacks: frozenset[str]) -> bool:
        """Returns whether one worker of the model can lack exactly these abilities."""
        return self.all <= lacks <= self.all | self.some


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch that is assigned or running; `request_ids` are its unfinished requests."""

    id: int
    worker: str
    joins: bool
    estimated_s: float
    started_at: float | None
    progress_tokens: int
    request_ids: tuple[str, ...]


def live_workers(connection: Connection, alive_s: float) -> list[RegisteredWorker]:
    """Returns workers whose last heartbeat is at most `alive_s` old and that may be given batches, ordered by name."""
    return told_apart([one for one in registered_workers(connection, alive_s) if one.may_be_given_batches])


def costed_workers(found: Iterable[RegisteredWorker]) -> dict[str, list[Worker]]:
    """Returns the workers whose costs are known, by each model that they can load; leaves out their running rows."""
    by_model = defaultdict(list)
    for one in found:
        if one.curves is not None:
            by_model[one.model].append(Worker(one.name, one.memory, one.curves.curves))
        for model, loaded in one.loadable.items():
            if model != one.model:
                by_model[model].append(Worker(one.name, loaded.memory, loaded.costs))
    return dict(by_model)


def largest_workers(workers: Iterable[RegisteredWorker]) -> dict[str, int]:
    """Returns, by model, the tokens of the longest row that fits a worker which has the model or can load it."""
    largest: defaultdict[str, int] = defaultdict(int)
    for worker in workers:
        memories = {model: one.memory for model, one in worker.loadable.items()} | {worker.model: worker.memory}
        for model, memory in memories.items():
            largest[model] = max(largest[model], memory.longest_row_tokens)
    return dict(largest)


def order_changes(connection: Connection, models: Mapping[str, str]) -> None:
    """Orders workers to change to models, by worker's name; a worker reads its order at its next heartbeat."""
    connection.execute(
        text("""
            update workers w set wanted_model = o.model
            from unnest(cast(:names as text[]), cast(:models as text[])) as o (name, model) where w.name = o.name
        """),
        {"names": list(models), "models": list(models.values())},
    )


def lacking(workers: Iterable[RegisteredWorker]) -> dict[str, Lacking]:
    """Returns the abilities that these workers lack, by model; leaves out models whose workers lack none."""
    of_models: defaultdict[str, list[frozenset[str]]] = defaultdict(list)
    for worker in workers:
        of_models[worker.model].append(worker.lacks)
    found = {model: (frozenset.intersection(*lacks), frozenset.union(*lacks)) for model, lacks in of_models.items()}
    return {model: Lacking(by_all, by_any - by_all) for model, (by_all, by_any) in found.items() if by_any}


def served_adapters(session: Session) -> dict[str, str]:
    """Returns the base model of each adapter that a stored worker serves, or served before it ended, by adapter."""
    rows = session.execute(
        text("""
            select distinct adapter, model from workers, jsonb_array_elements_text(facts->'adapters') as adapter
        """)
    )
    return {row.adapter: row.model for row in rows}


def set_curves(connection: Connection, worker: str, curves: ProfiledCurves) -> bool:
    """Replaces a worker's curves by a better profile; returns False if the worker never registered."""
    replaced = """
        update workers set facts = jsonb_set(facts, '{curves}', cast(:curves as jsonb)), report = report - 'curves'
        where name = :name returning name
    """
    return bool(run(connection, replaced, {"curves": to_json(curves), "name": worker}))


def open_batches(connection: Connection) -> list[OpenBatch]:
    """Returns every batch that is assigned or running, in the order of assignment."""
    rows = run(
        connection,
        """
            select b.id, b.worker, b.joins, b.estimated_s, extract(epoch from b.started_at)::float8 as started_at,
                b.progress_tokens,
                array(select r.id from requests r where r.batch_id = b.id and r.status = 'in_progress') as request_ids
            from batches b where b.status in ('assigned', 'running') order by b.id
        """,
    )
    return [OpenBatch(**{**row._asdict(), "request_ids": tuple(row.request_ids)}) for row in rows]


def serving_times(connection: Connection, batch_ids: Collection[int]) -> list[float]:
    """Returns the serving times in seconds of those of these batches that have finished and are not deleted."""
    sql = "select serving_s from batches where id = any(cast(:ids as bigint[])) and serving_s is not null"
    return [row.serving_s for row in run(connection, sql, {"ids": list(batch_ids)})]
