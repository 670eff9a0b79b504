"""Reads the registered workers for the planner and the pages: what they reported, and what the database adds to it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection

from models.connections.sql import run
from models.stored_values import from_json
from scheduling.costs import ProfiledCurves, WorkerCurves
from scheduling.kv_memory import KvMemory
from scheduling.worker_facts import NO_FIGURES, Loadable, WorkerFacts, WorkerReport

DAY_S = 86_400.0
# The remedy that every page and command names for an engine that is set aside.
REPAIR_ENGINE = "start or repair its server: a trial brings it back; if it has another model now, restart the worker"
ADAPTER = "adapter:"  # prefix of the name of the ability to serve an adapter
TOKENS_OF = "tokens of:"  # prefix of the name of the ability to resume the tokens with a fingerprint
# The states in which a worker gets batches, now or once it has loaded its next model.
TAKES_BATCHES = ("changing", "running", "batch_sent", "idle")


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """The open batches of a worker: their rows, and the memory that these rows take, in tokens.

    `held_tokens` is the memory at the last heartbeat, `reserved_tokens` the memory once each row has reached the upper
    quantile of its length. `lasting` counts the open batches that the worker has taken, `sent` the other open ones.
    """

    rows: int = 0
    held_tokens: int = 0
    reserved_tokens: int = 0
    lasting: int = 0
    sent: int = 0
    out_of_memory: int = 0  # batches that ran out of memory in the last hour


@dataclass(frozen=True, slots=True)
class RegisteredWorker:
    """A worker with its facts and its last report.

    `lacks` names the abilities that its engine lacks, and the adapters that only other workers of its model serve. Only
    `fleet_use.workers_in_use` fills in the `load`.
    """

    facts: WorkerFacts
    report: WorkerReport = NO_FIGURES
    lacks: frozenset[str] = frozenset()
    wanted_model: str | None = None  # the model that it was told to change to
    heartbeat_age_s: float = 0.0
    up_s: float = 0.0  # seconds since it registered
    stopped: bool = False
    stopping: bool = False
    not_consuming: bool = False
    drained: bool = False
    load: WorkerLoad = field(default_factory=WorkerLoad)

    @property
    def name(self) -> str:
        """The name that the worker registered."""
        return self.facts.name

    @property
    def model(self) -> str:
        """The model that the worker has loaded."""
        return self.facts.model

    @property
    def curves(self) -> WorkerCurves | None:
        """The serving time curves that the worker has learned, or else the ones that it registered."""
        return self.report.curves or self.facts.curves

    @property
    def memory(self) -> KvMemory:
        """The memory of the worker's KV cache, with the number of rows that it takes at present."""
        most = self.report.max_rows
        return self.facts.memory if most is None else replace(self.facts.memory, max_rows=most)

    @property
    def loadable(self) -> Mapping[str, Loadable]:
        """The models that the worker can change to, by name; empty if it always serves the same model."""
        return self.facts.loadable

    @property
    def memory_in_tokens(self) -> bool:
        """Whether its memory is only known in tokens, as a remote server's is; a token then counts as one byte."""
        return self.facts.memory.delta_bytes == 1

    @property
    def may_be_given_batches(self) -> bool:
        """Whether a live worker may get batches: it works, takes messages, has no fault, and no operator drains it."""
        kept = self.stopped or self.stopping or self.not_consuming or self.drained
        return not kept and self.report.fault is None

    @property
    def changing(self) -> bool:
        """Whether a change of its model was ordered and is not done yet."""
        return self.wanted_model not in (None, self.model) and self.wanted_model in self.loadable

    @property
    def changed(self) -> "RegisteredWorker":
        """The worker as it will be after the change of model that was ordered; itself without an order."""
        if self.wanted_model is None or not self.changing:
            return self
        loaded = self.loadable[self.wanted_model]
        curves = ProfiledCurves(loaded.costs)
        facts = replace(self.facts, model=self.wanted_model, memory=loaded.memory, curves=curves)
        return replace(self, facts=facts, report=replace(self.report, max_rows=None, curves=None))

    def lives(self, alive_s: float) -> bool:
        """Returns whether it has not ended and its last heartbeat is at most `alive_s` old."""
        return not self.stopped and self.heartbeat_age_s <= alive_s

    def state(self, alive_s: float) -> str:
        """Returns the worker's state in a word or two; it gets batches only in the states of TAKES_BATCHES."""
        states = {
            "stopped": self.stopped,
            "lost": self.heartbeat_age_s > alive_s,
            "takes_no_messages": self.not_consuming,
            "set_aside": self.report.fault is not None,
            "stopping": self.stopping,
            "drained": self.drained and not self.load.lasting,
            "draining": self.drained,
            "changing": self.wanted_model not in (None, self.model),
            "running": self.load.lasting > 0,
            "batch_sent": self.load.sent > 0,
        }
        return next((state for state, holds in states.items() if holds), "idle")


def registered_workers(connection: Connection, within_s: float | None = None) -> list[RegisteredWorker]:
    """Returns the workers with a heartbeat in the last `within_s`, or all stored ones with None, ordered by name."""
    # The adapters of all workers are read once: a subquery for each of 64 workers took 1.5 ms.
    rows = run(
        connection,
        """
            with served as materialized (
                select distinct model, adapter from workers, jsonb_array_elements_text(facts->'adapters') as adapter
            )
            select facts::text, report::text, wanted_model,
                array(select adapter from served where served.model = workers.model) as lacks,
                extract(epoch from clock_timestamp() - heartbeat_at)::float8 as heartbeat_age_s,
                extract(epoch from clock_timestamp() - started_at)::float8 as up_s,
                stopped_at is not null as stopped, stopping, not_consuming_since is not null as not_consuming,
                drained_at is not null as drained
            from workers where cast(:within_s as float8) is null
                or heartbeat_at > statement_timestamp() - make_interval(secs => :within_s)
            order by name
        """,
        {"within_s": within_s},
    )
    return [_registered(**row._asdict()) for row in rows]


def told_apart(workers: Sequence[RegisteredWorker]) -> list[RegisteredWorker]:
    """Returns the workers, each of which lacks the ability to resume tokens that only others of its model generate.

    A worker with more memory than these does not lack it, and begins such requests anew: they may not fit elsewhere.
    """
    longest = defaultdict[tuple[str, str], int](int)
    for worker in workers:
        for fingerprint in worker.facts.fingerprints.values():
            key = worker.model, fingerprint
            longest[key] = max(longest[key], worker.memory.longest_row_tokens)

    def apart(worker: RegisteredWorker) -> RegisteredWorker:
        own, tokens = [*worker.facts.fingerprints.values()], worker.memory.longest_row_tokens
        others = [each for (model, each), most in longest.items() if model == worker.model and most >= tokens]
        foreign = frozenset(TOKENS_OF + each for each in others if each not in own)
        return replace(worker, lacks=worker.lacks | foreign) if foreign else worker

    return [apart(worker) for worker in workers]


def _registered(facts: str, report: str, lacks: list[str], **known: Any) -> RegisteredWorker:
    """Returns the worker of a row; `lacks` holds all adapters of its model, also the ones that it serves itself."""
    read = from_json(WorkerFacts, facts)
    missing = (ADAPTER + adapter for adapter in lacks if adapter not in read.adapters)
    return RegisteredWorker(read, from_json(WorkerReport, report), frozenset([*read.lacks, *missing]), **known)
