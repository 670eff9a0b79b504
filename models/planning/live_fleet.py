"""Reads the fleet for the planner: live workers, open batches, and the outcomes of ended batches."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from sqlalchemy import Connection, bindparam
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from models.planning.planner_requests import ADAPTER
from models.planning.worker_costs import LONGEST_ROW, MEMORY, curves_from_store, curves_to_store, loadable_from_store
from models.sql import run, text
from models.tables import BatchStatus
from scheduling.costs import ProfiledCurves, WorkerCurves, linearized
from scheduling.kv_memory import KvMemory
from scheduling.policy import Loadable, Worker
from scheduling.request import RowLength

# A worker that has not deregistered, is not stopping, takes its messages, is not drained, and whose engine works.
MAY_BE_GIVEN_BATCHES = """stopped_at is null and not stopping and not_consuming_since is null and fault is null
    and drained_at is null"""

# The abilities that a worker reports as lacking, and the adapters that only other workers of its model serve. Read in
# each row's subquery, the other workers took 1.5 ms with 64 of them.
SERVED = "served as materialized (select distinct model, adapter from workers, unnest(adapters) as adapter)"
LACKS = f"""lacks || array(
    select '{ADAPTER}' || adapter from served where served.model = workers.model and adapter <> all(workers.adapters)
) as lacks"""  # noqa: S608  # a constant


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker with a fresh heartbeat; `curves` give the seconds of its prefills and iterations (SCLS Eq. 3-4).

    `row_lengths` has its predictions of running rows, which share `shared_tokens`; `loadable` the models among which
    it can change, if any.
    """

    name: str
    model: str
    theta_bytes: int
    delta_bytes: int
    curves: WorkerCurves | None
    paged: bool = False
    block_tokens: int = 1
    max_rows: int | None = None
    lacks: frozenset[str] = frozenset()
    prefix_cache: bool = False
    windowed_bytes: int = 0
    window_tokens: int = 0
    row_lengths: Mapping[str, RowLength] = field(default_factory=dict)
    shared_tokens: int = 0
    loadable: Mapping[str, Loadable] = field(default_factory=dict)
    wanted_model: str | None = None

    @property
    def changing(self) -> bool:
        """Whether a change of its model was ordered and is not done yet."""
        return self.wanted_model is not None and self.wanted_model != self.model and self.wanted_model in self.loadable

    @property
    def changed(self) -> "LiveWorker":
        """The worker as it will be after the change of model that was ordered; itself without an order."""
        if self.wanted_model is None or not self.changing:
            return self
        loaded = self.loadable[self.wanted_model]
        return replace(
            self, model=self.wanted_model, **asdict(loaded.memory), curves=ProfiledCurves(linearized(loaded.costs))
        )

    @property
    def memory(self) -> KvMemory:
        """The memory of its KV cache."""
        return KvMemory(**{name: getattr(self, name) for name in MEMORY})


@dataclass(frozen=True, slots=True)
class Lacking:
    """Names of abilities that engines of one model lack: those that all of them lack, and those that only some lack."""

    all: frozenset[str] = frozenset()
    some: frozenset[str] = frozenset()

    def explains(self, lacks: frozenset[str]) -> bool:
        """Whether a worker that lacks these abilities is consistent with this value."""
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


@dataclass(frozen=True, slots=True)
class BatchEnding:
    """A batch's status, and its serving time once it has finished."""

    status: BatchStatus
    serving_s: float | None


def live_workers(connection: Connection, alive_s: float) -> list[LiveWorker]:
    """Returns workers whose last heartbeat is at most `alive_s` old and that may be given batches, ordered by name."""
    lives = "heartbeat_at > statement_timestamp() - make_interval(secs => :alive_s)"
    return _workers(connection, f"{MAY_BE_GIVEN_BATCHES} and {lives}", alive_s=alive_s)


def known_workers(connection: Connection) -> list[LiveWorker]:
    """Returns every worker that has not been forgotten, also those that have ended, ordered by name."""
    return _workers(connection, "true")


def costed_workers(found: Iterable[LiveWorker]) -> dict[str, list[Worker]]:
    """Returns the workers of known costs without their rows, under each model that they can load."""
    by_model = defaultdict(list)
    for one in found:
        if one.curves is not None:
            by_model[one.model].append(Worker(one.name, one.memory, one.curves.curves))
        for model, loaded in one.loadable.items():
            if model != one.model:
                by_model[model].append(Worker(one.name, loaded.memory, loaded.costs))
    return dict(by_model)


def _workers(connection: Connection, condition: str, **parameters: float) -> list[LiveWorker]:
    columns = f"""name, model, theta_bytes, delta_bytes, curves, paged, block_tokens, max_rows, prefix_cache,
        windowed_bytes, window_tokens, row_lengths, shared_tokens, loadable, wanted_model, {LACKS}"""
    select = f"with {SERVED} select {columns} from workers where {condition} order by name"  # noqa: S608  # constants
    return [
        LiveWorker(
            **{
                **row._asdict(),
                "lacks": frozenset(row.lacks),
                "curves": curves_from_store(row.curves),
                "row_lengths": {name: RowLength(*length) for name, length in row.row_lengths.items()},
                "loadable": loadable_from_store(row.loadable),
            }
        )
        for row in run(connection, select, parameters)
    ]


def largest_workers(connection: Connection, within_s: float) -> dict[str, int]:
    """Returns the tokens of the longest row that fits a worker of each model, among those heard of in `within_s`."""
    rows = run(
        connection,
        f"""
            select model, max({LONGEST_ROW}) as tokens from (
                select model, theta_bytes, delta_bytes, windowed_bytes, window_tokens, heartbeat_at from workers
                union all
                select key, m.theta_bytes, m.delta_bytes, coalesce(m.windowed_bytes, 0), coalesce(m.window_tokens, 0),
                    heartbeat_at
                from workers, jsonb_each(loadable), jsonb_to_record(value)
                    as m (theta_bytes bigint, delta_bytes bigint, windowed_bytes bigint, window_tokens bigint)
            ) w
            where heartbeat_at > statement_timestamp() - make_interval(secs => :within_s) group by model
        """,  # noqa: S608  # a constant
        {"within_s": within_s},
    )
    return {row.model: row.tokens for row in rows}


def order_changes(connection: Connection, models: Mapping[str, str]) -> None:
    """Tells workers, by name, to change to a model; each reads it at its next heartbeat."""
    connection.execute(
        text("""
            update workers w set wanted_model = o.model
            from unnest(cast(:names as text[]), cast(:models as text[])) as o (name, model) where w.name = o.name
        """),
        {"names": list(models), "models": list(models.values())},
    )


def lacking(connection: Connection, within_s: float) -> dict[str, Lacking]:
    """Returns, by model, the abilities that workers with a heartbeat in the last `within_s` lack, if they lack any."""
    rows = run(
        connection,
        f"""
            with {SERVED}, heard as (
                select model, {LACKS} from workers
                where heartbeat_at > statement_timestamp() - make_interval(secs => :within_s)
            )
            select model, ability,
                count(*) = (select count(*) from heard of_model where of_model.model = heard.model) as by_all
            from heard, unnest(lacks) as ability group by model, ability
        """,  # noqa: S608  # a constant
        {"within_s": within_s},
    )
    found = [(row.model, row.ability, row.by_all) for row in rows]
    return {
        model: Lacking(
            frozenset(ability for of, ability, by_all in found if of == model and by_all),
            frozenset(ability for of, ability, by_all in found if of == model and not by_all),
        )
        for model, _, _ in found
    }


def served_adapters(session: Session) -> dict[str, str]:
    """Returns the adapters that workers serve, or served before they ended, each with the model beside which it is."""
    rows = session.execute(text("select distinct adapter, model from workers, unnest(adapters) as adapter"))
    return {row.adapter: row.model for row in rows}


def set_curves(connection: Connection, worker: str, curves: ProfiledCurves) -> bool:
    """Replaces a worker's measured curves by a better profile; returns False if the worker never registered."""
    statement = text("update workers set curves = :curves where name = :name returning name")
    bound = statement.bindparams(bindparam("curves", type_=JSONB))
    return connection.execute(bound, {"curves": curves_to_store(curves), "name": worker}).one_or_none() is not None


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


def batch_endings(connection: Connection, batch_ids: Collection[int]) -> dict[int, BatchEnding]:
    """Returns the status and serving time of these batches by id; leaves out deleted batches."""
    rows = run(
        connection,
        "select id, status, serving_s from batches where id = any(cast(:ids as bigint[]))",
        {"ids": list(batch_ids)},
    )
    return {row.id: BatchEnding(BatchStatus(row.status), row.serving_s) for row in rows}
