"""Bulk jobs and webhooks while processes are killed: each line answered once, each event delivered."""

import itertools
import json
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.chaos.exactly_once import verdict
from benchmarks.chaos.promise_rows import Row, Size
from benchmarks.chaos.promises.process_promises import kinds_in_turn
from benchmarks.chaos.receiver_and_proxy import event_receiver
from benchmarks.chaos.recording_client import bodies, client_of, in_background
from benchmarks.chaos.service_under_test import ServiceUnderTest, service_under_test
from benchmarks.harness import until
from benchmarks.inputs.request_sources import start_bulk_job, write_bulk_file
from cli.api_client import Client, Json
from cli.bulk_run import ENDED
from inference.toy.toy_applications import toy_requests

READERS = "chores"  # the process that reads a job's lines, counts its ends and sends webhooks
KILLS_A_JOB = 10  # enough to hit a job while it is read, served and counted
READERS_EVERY = 5  # one kill in five hits the readers of lines, the first one while a new job is being read
SENDERS_EVERY = 2  # every other kill hits the process that sends the webhooks
READ_WITHIN_S = 10.0  # from a job's creation until its first lines are read; then comes the first kill
ENDED_WITHIN_S = 300.0  # jobs that have not ended by then count as lost
# After a minute other senders take over a killed sender's claims (`tasks/chores/webhook_sender.py`).
DELIVERED_WITHIN_S = 180.0
POLL_S = 1.0


def bulk_jobs(service: ServiceUnderTest, size: Size) -> list[Row]:
    """Kill every kind of process in turn (SIGKILL) while jobs are uploaded, read, served and counted."""
    jobs = -(-size.bulk_kills // KILLS_A_JOB)
    kinds, hit, batches = kinds_in_turn(service), Counter[str](), []
    with Client(service.url, service.key, attempts=60) as client, lines_file(size.bulk_lines) as path:
        for job in range(jobs):
            batches.append(start_bulk_job(client, path))
            until(partial(lines_are_read, service, batches[-1]), READ_WITHIN_S)
            kills = min(KILLS_A_JOB, size.bulk_kills - job * KILLS_A_JOB)
            hit += kill_in_turn(service, with_readers(kinds, READERS_EVERY), kills, size.kill_every_s)
        ended_s, ended = await_ended(client, batches)
        outputs = [named_lines(client, batch["output_file_id"]) for batch in ended]
        refused = sum((named_lines(client, batch["error_file_id"]) for batch in ended), Counter[str]())
    wanted = {f"{number}" for number in range(size.bulk_lines)}
    lost = sum(len(wanted - set(output)) for output in outputs)
    twice = sum(count > 1 for output in outputs for count in output.values())
    total, name = jobs * size.bulk_lines, f"{hit.total()} SIGKILLs while bulk jobs are read and served"
    made = service.sql(
        "select request_id from bulk_lines where request_id is not null and job_id = any(:ids)",
        ids=[batch["id"] for batch in ended],
    )
    states = Counter(batch["status"] for batch in ended)
    shown = f"{lost} of {total} in {jobs} jobs ({refused.total()} in error files; killed: {dict(hit)})"
    found = verdict(service, [row[0] for row in made])
    return [
        Row(f"{name}: lines without an answer", "0", shown, not lost and not refused),
        Row(f"{name}: lines twice in an output file", "0", f"{twice}", not twice),
        Row(f"{name}: requests made of the lines", f"{total}", f"{len(made)}", len(made) == total),
        found.once_row(name),
        Row(
            f"{name}: jobs completed",
            f"{jobs}",
            f"{dict(states)}, {ended_s:.0f} s after the last kill",
            states == {"completed": jobs},
        ),
    ]


def with_readers(kinds: Iterator[str], every: int) -> Iterator[str]:
    """Yield the readers first and then once in `every` kills, and the other kinds of process in turn in between."""
    while True:
        yield READERS
        yield from itertools.islice(kinds, every - 1)


def kill_in_turn(service: ServiceUnderTest, kinds: Iterator[str], kills: int, every_s: float) -> Counter[str]:
    """Send `kills` SIGKILLs, skipping kinds without a process; returns how many each kind got."""
    hit = Counter[str]()
    while hit.total() < kills:
        kind = next(kinds)
        if service.signal(kind, signal.SIGKILL) is not None:
            hit[kind] += 1
            time.sleep(every_s)
    return hit


def lines_are_read(service: ServiceUnderTest, batch: Json) -> bool:
    """Whether the first lines of a job have become requests."""
    return int(service.value("select next_line from bulk_jobs where id = :id", id=batch["id"])) > 1


@contextmanager
def lines_file(count: int) -> Iterator[Path]:
    """Write a temporary file of `count` toy requests."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "lines.jsonl"
        write_bulk_file(path, "bundled", toy_requests(count, seed=31, median_words=8.0, max_words=30))
        yield path


def await_ended(client: Client, batches: list[Json]) -> tuple[float, list[Json]]:
    """Wait until all jobs have ended; returns the seconds and the last state of each."""
    began, ended = time.monotonic(), list(batches)

    def all_ended() -> bool:
        ended[:] = [one if one["status"] in ENDED else client.batch(one["id"]) for one in ended]
        return all(one["status"] in ENDED for one in ended)

    until(all_ended, ENDED_WITHIN_S, POLL_S)
    return time.monotonic() - began, ended


def named_lines(client: Client, file_id: str | None) -> Counter[str]:
    """Count how often each custom_id is in a file of results."""
    content = b"".join(client.content(file_id)) if file_id else b""
    return Counter(json.loads(line)["custom_id"] for line in content.splitlines())


def webhooks(directory: Path, size: Size) -> list[Row]:
    """Kill every kind of process in turn (SIGKILL) while webhooks are sent to a receiver that refuses some attempts."""
    kills = size.bulk_kills
    rate = size.webhook_requests / (kills * size.kill_every_s)
    environment = {"MAGNUS_PRIVATE_WEBHOOKS": "true"}
    with (
        event_receiver() as receiver,
        service_under_test(directory / "state", environment=environment) as service,
        client_of(service) as client,
    ):
        with Client(service.url, service.key) as own:
            own.create_webhook(receiver.url, ())
        with in_background(client, bodies(size.webhook_requests, seed=32), rate):
            hit = kill_in_turn(service, with_readers(kinds_in_turn(service), SENDERS_EVERY), kills, size.kill_every_s)
        answered_s = service.answered_within(ENDED_WITHIN_S)
        events = {one.replace("resp_", "evt_") for one in client.accepted}
        began = time.monotonic()
        until(lambda: not receiver.lost(events), DELIVERED_WITHIN_S)
        took_s, lost = time.monotonic() - began, receiver.lost(events)
        again = sum(count - 1 for count in receiver.taken.values())
    name = f"{hit.total()} SIGKILLs while webhooks are sent"
    shown = (
        f"{len(lost)} of {len(events)}, {took_s:.0f} s after the last answer ({receiver.attempts} attempts, {again} "
    )
    shown += f"delivered again; killed: {dict(hit)})"
    answered = "not within 300 s" if answered_s is None else f"{answered_s:.1f} s after the last submission"
    return [
        Row(f"{name}: events lost", "0", shown, not lost and bool(events)),
        Row(f"{name}: requests answered", "all", answered, answered_s is not None),
    ]
