"""Storage: a full disk, a read-only directory, a model that is cut in half."""

import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from benchmarks.harness import Row, until
from benchmarks.service_start import up_program
from cli.hosting.child_process import start, stop
from settings import BUNDLED_MODEL
from tests.chaos.exactly_once import verdict
from tests.chaos.promised_service import promised_service
from tests.chaos.recording_client import RecordingClient, bodies, client_of

DISK = "256m"  # holds a fresh cluster, its first write-ahead log and the logs
REFUSED_WITHIN_S = 60.0  # a start that cannot succeed must end by then
RECOVERED_WITHIN_S = 60.0
PATIENCE_S = 180.0


def disk_full(directory: Path, long: bool) -> Iterator[Row]:
    """Fill the file system of the state directory to the last byte under load, and free it again later."""
    disk = directory / "disk"
    with _mounted(disk) as mounted:
        if not mounted:
            yield Row("disk full", "measured", "a small file system could not be mounted: run as root", False)
            return
        with promised_service(disk / "state") as service, client_of(service, timeout_s=5.0) as client:
            client.submit_all(bodies(40, seed=18))
            before = len(client.replies)
            _fill(disk / "filler")
            service.database.dispose()
            with suppress(psycopg.Error):  # Postgres must allocate the next segment of the write-ahead log
                psycopg.connect(service.facts.database_url, connect_timeout=10).execute("select pg_switch_wal()")
            for body in bodies(40 if long else 15, seed=19):
                client.post(body)
                time.sleep(0.2)
            replies = client.replies[before:]
            alive = service.up is not None and service.up.poll() is None
            (disk / "filler").unlink()
            freed = time.monotonic()
            recovered = alive and until(lambda: _accepts(client), RECOVERED_WITHIN_S)
            shown = f"after {time.monotonic() - freed:.1f} s" if recovered else "no"
            finished_s = service.answered_within(PATIENCE_S) if alive else None
            found = verdict(service, client.accepted) if alive else None
    statuses = dict(sorted(Counter(reply.status for reply in replies).items()))
    clear = all(status in (200, 202, 503, 507) for status in statuses)
    yield Row("disk full: replies", "accepted and kept, or 503 or 507", f"{statuses} (0: no reply)", clear)
    shown += f", supervisor {'alive' if alive else 'dead'}"
    yield Row("disk full: recovers when there is room", "within 60 s, supervisor alive", shown, recovered)
    if found:
        yield found.lost_row("disk full", finished_s)


def _accepts(client: RecordingClient) -> bool:
    """Whether a request is accepted at the first attempt."""
    answer = client.post(bodies(1, seed=20)[0])
    return answer is not None and answer.is_success


def _fill(path: Path) -> None:
    for block in (bytes(2**16), b"x" * 512):
        with path.open("ab", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(block)


@contextmanager
def _mounted(directory: Path, *options: str) -> Iterator[bool]:
    """Mount a small file system at this directory; yields false if this user may not mount."""
    directory.mkdir()
    arguments = ["mount", "-t", "tmpfs", "-o", ",".join([f"size={DISK}", "mode=755", *options]), "tmpfs"]
    done = subprocess.run([*arguments, str(directory)], capture_output=True, check=False)
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "--lazy", str(directory)], check=False)


def refused_starts(directory: Path, long: bool) -> Iterator[Row]:
    """Start `magnus up` in a read-only directory and with a truncated model: it must end soon with a clear error."""
    with _mounted(directory / "disk", "ro") as mounted:
        if mounted:
            yield _refused(directory / "disk" / "state", "state directory read-only")
        else:
            yield Row("state directory read-only", "measured", "could not be mounted: run as root", False)
    half = directory / "half"
    shutil.copytree(BUNDLED_MODEL, half)
    weights = half / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    yield _refused(directory / "state", "model directory half-written", "--model", str(half))


def _refused(state_dir: Path, promise: str, *options: str) -> Row:
    program = up_program(state_dir, "--workers", "1", *options)
    log = state_dir.parents[1] / f"{promise.replace(' ', '-')}.log"
    process, began = start(program, log), time.monotonic()
    try:
        ended = until(lambda: process.poll() is not None, REFUSED_WITHIN_S)
    finally:
        stop((program, process))
    output = log.read_text(errors="replace").strip()
    error = next((line for line in output.splitlines() if "rror" in line), output[-200:])
    clear = ended and process.returncode not in (0, None) and "Traceback" not in output and bool(output)
    measured = f"{'ended' if ended else 'still running'} after {time.monotonic() - began:.1f} s: {error[:160]}"
    return Row(promise, "a clear error, no traceback, within 60 s", measured, clear)
