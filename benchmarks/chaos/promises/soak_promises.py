"""Half an hour at load: no process grows, and Postgres keeps its rows tidy."""

import contextlib
import time
from pathlib import Path

import numpy as np
import psutil

from benchmarks.chaos.exactly_once import verdict
from benchmarks.chaos.promise_rows import Row, Size
from benchmarks.chaos.recording_client import client_of, pressure
from benchmarks.chaos.service_under_test import ServiceUnderTest, service_under_test

GROWTH_MB_PER_H = 2.0  # the bound
SAMPLE_EVERY_S = 5.0  # 300 samples in the 25 minutes after the warm-up
# Dead rows a live one: autovacuum starts at a fifth, and may lag behind a busy table.
MOST_DEAD_SHARE = 1.0
PATIENCE_S = 180.0


def soak(directory: Path, size: Size) -> list[Row]:
    """Memory that each process alone holds (USS), its slope after the warm-up; dead rows of the busiest tables."""
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
    """The supervisor and its children; Postgres sessions end and start, and their shared memory is not theirs."""
    kinds = {kind: process for kind, process in service.processes().items() if kind != "postgres session"}
    return {"magnus up": service.tree()[0], **kinds}


def _dead_share(service: ServiceUnderTest) -> float:
    return float(
        service.value(
            """select coalesce(max(n_dead_tup::float8 / greatest(n_live_tup, 1000)), 0) from pg_stat_user_tables
            where relname in ('requests', 'batches', 'workers', 'service_state')"""
        )
    )
