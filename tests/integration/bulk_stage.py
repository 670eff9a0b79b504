"""Bulk jobs as their background process serves them, step by step, and the lines that tests send."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from openai import OpenAI
from openai.types import Batch, FileObject

from models.connections.session import make_engine, make_sessions
from models.planning.live_fleet import served_adapters
from tasks.chores.job_progress import update_jobs
from tasks.chores.line_feeder import LineFeeder
from tests.integration.api_service import MODEL, Api
from webapp.context.app_context import AppContext

LONG_S = 60.0  # more seconds than any piece of work takes, which ends when nothing is left to do


def chat_line(name: object, content: object = "eins", **fields: Any) -> dict[str, Any]:
    """A line that asks one chat."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}]} | fields
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}


def jsonl(lines: Iterable[dict[str, Any] | bytes]) -> bytes:
    """The lines as a file's bytes; bytes stay as they are."""
    return b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)


def records(content: bytes | str) -> list[dict[str, Any]]:
    """The lines of a file of results."""
    return [json.loads(line) for line in content.splitlines()]


def upload(client: OpenAI, lines: Any) -> FileObject:
    """A file of these lines, or of these bytes."""
    content = lines if isinstance(lines, bytes) else jsonl(lines)
    return client.files.create(file=("lines.jsonl", content), purpose="batch")


def create(client: OpenAI, lines: Any, endpoint: Any = "/v1/chat/completions", **fields: Any) -> Batch:
    """A batch of these lines."""
    fields = {"completion_window": "24h"} | fields
    return client.batches.create(input_file_id=upload(client, lines).id, endpoint=endpoint, **fields)


def results(client: OpenAI, file_id: str | None) -> dict[str | None, dict[str, Any]]:
    """The lines of a file of results by their custom_id."""
    assert file_id is not None
    found = records(client.files.content(file_id).content)
    named = {record["custom_id"]: record for record in found}
    assert len(named) == len(found)
    return named


def counts(batch: Batch) -> tuple[int, int, int]:
    """The numbers of lines, of answered ones and of failed ones."""
    assert batch.request_counts is not None
    return batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed


@dataclass
class BulkStage:
    """The background process of an API's bulk jobs, and the workers that answer their requests."""

    api: Api
    max_requests: int = 200_000
    max_tokens: int = 100_000_000
    max_bytes: int = 2**30

    def feed(self) -> int:
        """Queue as many lines as the tenants' limits admit, with one connection; returns how many lines were read."""
        self.api.sql("update bulk_jobs set fed_at = clock_timestamp() where fed_at > clock_timestamp()")  # hold no job
        context: AppContext = self.api.client.application.extensions["magnus"]
        limits = {"max_requests": self.max_requests, "max_tokens": self.max_tokens, "max_bytes": self.max_bytes}
        engine = make_engine(self.api.engine.url.render_as_string(False), pool_size=1, pool_timeout_s=1.0)

        def all_adapters() -> dict[str, str]:
            with make_sessions(engine)() as session:
                return served_adapters(session)

        prompt_limits = replace(context.prompt_limits, all_adapters=all_adapters)
        try:
            return LineFeeder(engine, lambda: prompt_limits, **limits).feed(LONG_S)
        finally:
            engine.dispose()

    def count(self) -> None:
        """Update all jobs until there is nothing more to do."""
        for _ in range(4):  # stopping a job's lines, finalizing the job and ending it take one look each
            self.api.sql("update bulk_jobs set look_at = clock_timestamp()")
            update_jobs(self.api.engine, LONG_S)

    def answer(self, most: int = 1_000_000) -> int:
        """Answer queued requests as workers do, oldest first; returns their number."""
        return len(
            self.api.sql(
                """update requests set status = 'completed', output_text = upper(input), output_tokens = 2,
                finish_reason = 'eos', finished_at = clock_timestamp() where id in (
                    select id from requests where status = 'queued' order by arrived_at limit :most) returning id""",
                most=most,
            )
        )

    def finish(self) -> None:
        """Feed, answer and update until nothing is left that the queue's limits admit."""
        while self.feed() or self.answer():
            pass
        self.count()
