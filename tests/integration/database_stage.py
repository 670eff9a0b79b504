"""The database as planner, predictor and workers read and write it; tests insert rows without API, broker or clock."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import Any, TypeVar

from sqlalchemy import Engine, text

from models.stored_values import to_json
from models.tables import Base
from scheduling.costs import ProfiledCurves, ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.worker_facts import WorkerFacts

MODEL = "small"
CURVES = ServingCurves((1e-5, 0.0, 0.0, 0.01), (1e-7, 1e-4, 0.0, 0.004))
T = TypeVar("T")


def facts(name: str = "w1", model: str = MODEL, kv_tokens: int = 10_000, **more: Any) -> WorkerFacts:
    """The facts of a worker with a KV cache for this many tokens of one byte each."""
    return WorkerFacts(name, model, "cpu", KvMemory(kv_tokens, 1), **more)


def insert_worker(sql: Callable[..., object], worker: WorkerFacts, **columns: str) -> None:
    """Inserts a worker that has registered; other columns are SQL expressions."""
    row = {"name": ":name", "model": ":model", "facts": "cast(:facts as jsonb)", "longest_row_tokens": ":longest"}
    row |= columns
    sql(
        f"insert into workers ({', '.join(row)}) values ({', '.join(row.values())})",
        name=worker.name,
        model=worker.model,
        facts=to_json(worker),
        longest=worker.memory.longest_row_tokens,
    )


@dataclass
class Stage:
    """The database of one test."""

    database: Engine

    def sql(self, statement: str, **parameters: Any) -> list[Any]:
        """Runs a statement, commits it, and returns its rows."""
        with self.database.begin() as connection:
            result = connection.execute(text(statement), parameters)
            return list(result) if result.returns_rows else []

    def request(self, id: str, *, input: str = "abc", instructions: str = "", **columns: Any) -> str:
        """A queued and predicted request; other columns as given."""
        columns = {
            "id": id,
            "tenant": "acme",
            "model": MODEL,
            "application": "copy",
            "instructions": instructions,
            "input": input,
            "body": {"metadata": {}, "background": True, "stop": [], "sampling": {}},
            "prompt_tokens": len(input),
            "input_tokens": len(input),
            "limit_tokens": 20,
            "predicted_tokens": 10,
            "predicted_upper_tokens": 15,
        } | columns
        with self.database.begin() as connection:
            connection.execute(Base.metadata.tables["requests"].insert(), columns)
        return id

    def worker(self, name: str = "w1", *, kv_tokens: int = 10_000, model: str = MODEL, prefill_s: float = 0.01) -> str:
        """A live worker with a KV cache for `kv_tokens` tokens of one byte each, and CURVES with this fixed prefill."""
        prefill = (*CURVES.prefill[:3], prefill_s)
        insert_worker(self.sql, facts(name, model, kv_tokens, curves=ProfiledCurves(replace(CURVES, prefill=prefill))))
        return name

    def requests(self, *columns: str) -> dict[str, Any]:
        """The values of one or several columns, by request id."""
        rows = self.sql(f"select id, {', '.join(columns)} from requests order by id")
        return {row[0]: row[1] if len(columns) == 1 else tuple(row[1:]) for row in rows}

    def batches(self) -> dict[int, tuple[str, list[str]]]:
        """Worker and requests of every batch, as they are or last were in it."""
        rows = self.sql(
            """select b.id, b.worker, array(select id from requests where batch_id = b.id order by id)
            from batches b order by b.id"""
        )
        return {row[0]: (row[1], row[2]) for row in rows}

    def end_batch(self, batch_id: int, status: str = "finished") -> None:
        """Ends a batch as a worker does: every request is answered or, if memory ran out, queued again."""
        if status == "finished":
            self.sql(
                """update requests set status = 'completed', finished_at = clock_timestamp(), output_tokens = 7
                where batch_id = :id and status = 'in_progress'""",
                id=batch_id,
            )
        else:
            self.sql(
                """update requests set status = 'queued', planner_epoch = 0, sealed_group = cast(batch_id as text)
                where batch_id = :id and status = 'in_progress'""",
                id=batch_id,
            )
        self.sql(
            "update batches set status = :status, finished_at = clock_timestamp() where id = :id",
            id=batch_id,
            status=status,
        )


def eventually(condition: Callable[[], T | None], within_s: float = 30.0) -> T:
    """The condition's value once it is true; fails if that takes longer than `within_s`."""
    deadline = monotonic() + within_s
    while not (result := condition()):
        assert monotonic() < deadline, "it never became true"
        sleep(0.01)  # time between two evaluations of the condition; any value works
    return result
