"""The simulated service's chores: bulk jobs, webhooks with a scripted receiver, usage; and clients with jobs."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from models.bulk import bulk_jobs, stored_files
from models.bulk.bulk_tables import BulkJob, BulkStatus
from models.webhooks.webhook_deliveries import DeliveryResult
from processes.loop import Loop
from protocol.limits.prompt_limits import PromptLimits
from tasks.chores.job_progress import update_jobs
from tasks.chores.line_feeder import LineFeeder
from tasks.chores.upkeep import do_upkeep
from tasks.chores.webhook_sender import MOST_AT_ONCE, WebhookSender
from tests.simulation.actors import Process, World
from tests.simulation.scripted_engine import MODEL, ScriptedTokens

Call = Callable[[Callable[[Session], Any]], Any]  # calls with a session until the call succeeds
TENANT = "tenant-0"  # has the jobs and the webhook endpoint
EVENTS = [f"response.{end}" for end in ("completed", "incomplete", "failed", "cancelled")]
EVENTS += [f"batch.{end}" for end in ("completed", "failed", "expired", "cancelled")]
ENDPOINT = """
    insert into webhook_endpoints (id, tenant, url, events, secret)
    values ('we_1', %s, 'https://receiver.example', %s, 'whsec_c2VjcmV0')
"""
RETRY_S = 3.0  # between two attempts to deliver an event
# With this few places, a job's lines come in several steps, beside the tenant's own requests.
MOST_REQUESTS = 16


@dataclass(eq=False)
class Job:
    """A bulk job as its client knows it."""

    lines: int
    id: str | None = None
    cancelled: bool = False
    ended: str | None = None


class Chores:
    """The parts of the process `chores`, and the world outside that they serve."""

    def __init__(self, world: World, engine: Callable[..., Engine]) -> None:
        self._world, self._engine = world, engine
        self.received: Counter[str] = Counter()  # events by their id
        self.jobs: list[Job] = []
        if world.scenario.jobs:  # otherwise nobody delivers
            world.server.sql(ENDPOINT, (TENANT, EVENTS))

    def start(self, process: Process) -> None:
        """Starts the process's loops."""
        bulk = self._engine(process, "bulk", pool_size=1)
        limits = PromptLimits(MODEL, ScriptedTokens(), 5000, 60)  # type: ignore[arg-type]
        feeder = LineFeeder(bulk, lambda: limits, max_requests=MOST_REQUESTS, max_tokens=10**6, max_bytes=10**8)

        def work_on_bulk_jobs() -> None:
            feeder.feed(10.0)
            update_jobs(bulk, 5.0)

        upkeep = self._engine(process, "upkeep", pool_size=1)
        webhooks = self._engine(process, "webhooks", pool_size=1, autocommit=True)
        for name, work, every_s in (
            ("bulk", work_on_bulk_jobs, 1.9),
            ("upkeep", partial(do_upkeep, upkeep, 86_400.0), 10.0),
            ("webhooks", partial(self._deliver, WebhookSender(webhooks, private=True)), 1.9),
        ):
            Loop(name, work, every_s).start()

    def _deliver(self, sender: WebhookSender) -> None:
        """Sends due events without a network; the receiver may not answer, or answer with an error."""
        results = []
        for one in sender._claim(MOST_AT_ONCE, {}):
            self._world.wait(None, 0.1)
            fails = self._world.chance(self._world.scenario.receiver_errors)
            if not fails or self._world.chance(0.5):  # a receiver may take an event and fail to say so
                self.received[one.event_id] += 1
            retry_s = RETRY_S if fails else None
            status = 500 if fails else 200
            results.append(DeliveryResult(one.id, one.endpoint_id, one.attempts, status, None, retry_s))
        if results:
            sender._write(results)

    # the clients with jobs

    def send_job(self, call: Call, job: Job, name: str) -> None:
        """Uploads a file, makes a job of it, perhaps pauses or cancels it, and looks at it until it has ended."""
        draw = self._world.random
        self.jobs.append(job)
        self._world.wait(None, draw.random() * 10.0)
        call(partial(self._create, job, name))
        for _ in range(draw.choice((0, 1, 6))):
            self._world.wait(None, 3.0 * draw.random())
            call(partial(self._change, job, bulk_jobs.pause_job))
            self._world.wait(None, draw.choice((2.0, 10.0)) * draw.random())
            call(partial(self._change, job, bulk_jobs.resume_job))
        if self._world.chance(self._world.scenario.cancels):
            self._world.wait(None, 8.0 * draw.random())
            job.cancelled = bool(call(partial(self._change, job, bulk_jobs.cancel_job)))
        while job.ended is None:
            self._world.wait(None, 2.0)
            call(partial(self._look, job))

    def _create(self, job: Job, name: str, session: Session) -> None:
        lines = [
            {"custom_id": f"{place}", "method": "POST", "url": "/v1/completions", "body": self._body(f"{name}.{place}")}
            for place in range(job.lines)
        ]
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        file_id = stored_files.begin_upload(session, TENANT, name)
        stored_files.add_chunk(session, TENANT, file_id, 1, data, 10**9)
        file = stored_files.finish_upload(session, file_id, len(data), job.lines, job.lines, None)
        new = BulkJob(tenant=TENANT, endpoint="/v1/completions", input_file_id=file.id, lines=file.lines)
        new.last_line, new.completion_window = file.last_line, "24h"
        new.idempotency_key, new.idempotency_sha256 = name, b"digest"
        job.id = bulk_jobs.create_job(session, new, 86_400.0).id

    def _body(self, prompt: str) -> dict[str, object]:
        return {"model": MODEL, "prompt": prompt, "max_tokens": self._world.random.choice((3, 40)), "temperature": 0}

    def _change(self, job: Job, change: Callable[..., bool], session: Session) -> bool:
        return change(session, TENANT, job.id)

    def _look(self, job: Job, session: Session) -> None:
        assert job.id is not None
        stored = bulk_jobs.fetch_job(session, TENANT, job.id)
        if stored is None:
            return self._world.fail(f"job {job.id} is gone")
        if stored.completed + stored.failed > job.lines:
            self._world.fail(f"job {job.id} counts {stored.completed} + {stored.failed} of {job.lines} lines")
        if stored.status in ("completed", "cancelled", "failed", "expired"):
            job.ended = str(stored.status)
            if stored.status is BulkStatus.completed and stored.completed + stored.failed != job.lines:
                self._world.fail(f"job {job.id} ended with {stored.completed} + {stored.failed} of {job.lines} lines")
        return None
