"""Processes killed, frozen and asked to stop while clients submit over HTTP; half an hour at load."""

import contextlib
import itertools
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

from benchmarks.chaos.exactly_once import verdict
from benchmarks.chaos.promise_rows import Row, Size
from benchmarks.chaos.recording_client import bodies, client_of, in_background, pressure
from benchmarks.chaos.service_under_test import ServiceUnderTest, service_under_test
from benchmarks.harness import percentile, until

ANSWERED_WITHIN_S = 60.0  # the promised time from the last submission to the last answer
PATIENCE_S = 180.0  # requests not answered by then count as lost
RESCUED_WITHIN_S = 15.0  # the promised time until a lost worker's requests start again


def kills(service: ServiceUnderTest, size: Size) -> list[Row]:
    """Kill every kind of process in turn (SIGKILL) during submissions over HTTP."""
    name = f"{size.kills} SIGKILLs over every kind of process"
    rate = size.kill_requests / (size.kills * size.kill_every_s)
    hit: list[str] = []
    with client_of(service) as client:
        with in_background(client, bodies(size.kill_requests, seed=1), rate):
            for kind in itertools.islice(kinds_in_turn(service), size.kills):
                if service.signal(kind, signal.SIGKILL):
                    hit.append(kind)
                time.sleep(size.kill_every_s)
        return _judged(service, client.accepted, f"{name} ({_counted(hit)})")


def freezes(service: ServiceUnderTest, size: Size) -> list[Row]:
    """Freeze every kind of process in turn (SIGSTOP) and never send SIGCONT."""
    name = f"{size.freezes} SIGSTOPs over every kind of process"
    rate = size.freeze_requests / (size.freezes * size.freeze_every_s)
    hit: list[str] = []
    with client_of(service) as client:
        with in_background(client, bodies(size.freeze_requests, seed=2), rate):
            for kind in itertools.islice(kinds_in_turn(service), size.freezes):
                if service.signal(kind, signal.SIGSTOP):
                    hit.append(kind)
                time.sleep(size.freeze_every_s)
        rows = _judged(service, client.accepted, f"{name} ({_counted(hit)})")
        service.thaw()
        service.answered_within(PATIENCE_S)  # requests that frozen processes held must not disturb the next promise
        return rows


def rescues(service: ServiceUnderTest, size: Size) -> list[Row]:
    """Measure the time from a worker's kill or freeze until its requests start again or are answered."""
    rows = []
    for number, how in ((signal.SIGKILL, "killed"), (signal.SIGSTOP, "frozen")):
        with client_of(service) as client, pressure(service, client, waiting=24):
            waits = [wait for _ in range(size.rescues) for wait in _rescue(service, number)]
        service.thaw()
        service.answered_within(PATIENCE_S)
        worst = percentile(waits, 0.99, "inverted_cdf") or float("inf")
        measured = f"P99 {worst:.1f} s, {len(waits)} requests of {size.rescues} workers"
        rows.append(
            Row(f"work of a {how} worker runs again", f"P99 within {RESCUED_WITHIN_S:g} s", measured, worst <= 15.0)
        )
    return rows


def _rescue(service: ServiceUnderTest, number: signal.Signals) -> list[float]:
    held = """select r.id, r.batch_id from requests r join batches b on b.id = r.batch_id
        where r.status = 'in_progress' and b.status = 'running' and b.worker = :worker"""
    worker, taken = "", {}
    for worker in itertools.cycle(name for name in service.processes() if name.startswith("worker-")):
        if service.signal(worker, number) is None:
            break
        time.sleep(0.2)  # the last write before the signal is visible by then
        taken = {row[0]: row[1] for row in service.sql(held, worker=worker)}
        if taken:
            break
        service.signal(worker, signal.SIGCONT)  # this worker had no work: try the other one
        until(lambda: service.value("select count(*) from batches where status = 'running'"), 10.0)
    signalled_at = time.time() - 0.2
    # a worker that the supervisor thawed answers its requests itself
    going_on = """select r.id, extract(epoch from
            case when b.started_at > to_timestamp(:since) then b.started_at else r.finished_at end)::float8
        from requests r join batches b on b.id = r.batch_id
        where r.id = any(:ids) and (b.started_at > to_timestamp(:since) or r.finished_at is not null)"""
    went_on: dict[str, float] = {}

    def all_went_on() -> bool:
        left = [key for key in taken if key not in went_on]
        went_on.update({row[0]: row[1] for row in service.sql(going_on, ids=left, since=signalled_at)})
        return len(went_on) == len(taken)

    until(all_went_on, 4 * RESCUED_WITHIN_S)
    return [went_on.get(key, float("inf")) - signalled_at for key in taken]


def kill_rate(service: ServiceUnderTest, size: Size) -> list[Row]:
    """Kill a process every 10 s; compares the rate of answers with the undisturbed rates just before and after."""
    window = max(size.window_s, size.rate_kills_s / 5)
    with client_of(service) as client, pressure(service, client, warm_after=size.settled_after):
        before = service.rate_for(window)
        since = time.time()
        for kind in kinds_in_turn(service):
            if time.time() - since >= size.rate_kills_s:
                break
            service.signal(kind, signal.SIGKILL)
            time.sleep(10.0)
        disturbed = service.rate(since, time.time())
        time.sleep(size.recovery_s)
        after = service.rate_for(window)
    undisturbed = (before + after) / 2
    share, bound = disturbed / max(undisturbed, 1e-9), 0.8 * size.slack
    measured = f"{share:.0%} ({disturbed:.1f} of {before:.1f} before and {after:.1f} answers/s after)"
    promise = f"some process killed every 10 s for {size.rate_kills_s:.0f} s: rate"
    return [Row(promise, f"at least {bound:.0%} of the undisturbed", measured, share >= bound)]


def rolling_restart(service: ServiceUnderTest, size: Size) -> list[Row]:
    """Restart every process in turn under load (SIGTERM), each after the one before has been replaced."""
    with client_of(service) as client:
        with pressure(service, client, waiting=60):
            for kind, process in service.processes().items():
                if kind in ("web worker", "postgres session"):
                    continue
                process.terminate()
                service.replaced(kind, process)
        rows = _judged(service, client.accepted, "SIGTERM, rolling restart of every process under load")
        claimed = service.value(
            """select count(*) from requests r left join batches b on b.id = r.batch_id
            where r.status = 'in_progress' and (b.id is null or b.status not in ('assigned', 'running'))"""
        )
        claimed += service.waiting()
        return [*rows, Row("rolling restart: rows left claimed", "0", f"{claimed}", claimed == 0)]


def kinds_in_turn(service: ServiceUnderTest) -> Iterator[str]:
    """Yield every kind of process without end, each round in another order."""
    kinds = sorted(service.processes())
    while True:
        service.random.shuffle(kinds)
        yield from kinds


def _judged(service: ServiceUnderTest, accepted: list[str], name: str) -> list[Row]:
    after_s = service.answered_within(PATIENCE_S)
    found = verdict(service, accepted)
    shown = "not within 180 s" if after_s is None else f"{after_s:.1f} s"
    in_time = after_s is not None and after_s <= ANSWERED_WITHIN_S
    return [
        found.lost_row(name),
        found.once_row(name.split(" (")[0]),
        Row(f"{name.split(' (')[0]}: all answered after the last submission", "within 60 s", shown, in_time),
    ]


def _counted(hit: list[str]) -> str:
    return ", ".join(f"{kind} {hit.count(kind)}" for kind in sorted(set(hit)))


GROWTH_MB_PER_H = 2.0  # the promised bound on the growth of a process
SAMPLE_EVERY_S = 5.0  # 300 samples in the 25 minutes after the warm-up
# Dead rows for each live one: autovacuum starts at a fifth and may lag behind on a busy table.
MOST_DEAD_SHARE = 1.0


def soak(directory: Path, size: Size) -> list[Row]:
    """Measure the growth of each process's own memory (USS) after the warm-up, and dead rows of tables."""
    with service_under_test(directory / "state") as service, client_of(service) as client:
        samples: dict[tuple[str, int], list[tuple[float, float]]] = {}
        bloat: list[float] = []
        began = time.time()
        with pressure(service, client, waiting=40):
            while (at := time.time() - began) < size.soak_s:
                if at > size.warm_up_s:
                    for kind, process in _measured(service).items():
                        with contextlib.suppress(psutil.Error):
                            used = process.memory_full_info().uss / 2**20
                            samples.setdefault((kind, process.pid), []).append((at, used))
                    bloat.append(_dead_share(service))
                time.sleep(SAMPLE_EVERY_S)
        answered = service.answered_within(PATIENCE_S)
        found = verdict(service, client.accepted)
    rows = []
    for (kind, _), points in sorted(samples.items()):
        hours, used = np.array(points).T / np.array([[3600.0], [1.0]])
        slope = float(np.polyfit(hours, used, 1)[0]) if len(points) > 2 else float("inf")
        measured = f"{slope:+.2f} MB/h, {used[0]:.1f} to {used[-1]:.1f} MB in {60 * (hours[-1] - hours[0]):.0f} min"
        rows.append(Row(f"soak: growth of {kind}", "under 2 MB/h", measured, slope < GROWTH_MB_PER_H))
    worst = max(bloat, default=float("inf"))
    name = f"soak of {size.soak_s / 60:.0f} min"
    return [
        *rows,
        Row(f"{name}: dead rows a live one", f"at most {MOST_DEAD_SHARE:g}", f"{worst:.2f}", worst <= MOST_DEAD_SHARE),
        found.lost_row(name, answered),
        found.once_row(name),
    ]


def _measured(service: ServiceUnderTest) -> dict[str, psutil.Process]:
    """The supervisor and its children, without Postgres sessions, which end and start and share their memory."""
    kinds = {kind: process for kind, process in service.processes().items() if kind != "postgres session"}
    return {"magnus up": service.tree()[0], **kinds}


def _dead_share(service: ServiceUnderTest) -> float:
    return float(
        service.value(
            """select coalesce(max(n_dead_tup::float8 / greatest(n_live_tup, 1000)), 0) from pg_stat_user_tables
            where relname in ('requests', 'batches', 'workers', 'service_state')"""
        )
    )
