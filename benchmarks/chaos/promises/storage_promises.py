"""Storage: a full disk, a read-only directory, tampered models, a schema that is newer than the code."""

import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from alembic import command
from alembic.util import CommandError
from sqlalchemy.engine import make_url

from benchmarks.chaos.exactly_once import verdict
from benchmarks.chaos.promise_rows import Row, Size
from benchmarks.chaos.recording_client import RecordingClient, bodies, client_of
from benchmarks.chaos.service_under_test import ServiceUnderTest, service_under_test
from benchmarks.harness import until
from benchmarks.service_start import up_program
from cli.demo.demo_service import train_predictor
from cli.demo.demo_workload import TRAINING_EXAMPLES, training_examples
from cli.hosting.child_process import start, stop
from cli.hosting.embedded_servers import create_database
from cli.hosting.process_commands import BIN
from models.connections.schema_upgrade import alembic_config, upgrade
from models.session import make_engine
from settings import BUNDLED_MODEL

DISK = "256m"  # holds a fresh cluster, its first write-ahead log and the logs
REFUSED_WITHIN_S = 60.0  # a start that cannot succeed must end by then
RECOVERED_WITHIN_S = 60.0
PATIENCE_S = 180.0


def disk_full(directory: Path, size: Size) -> list[Row]:
    """Fill the file system of the state directory to the last byte under load, and free it again later."""
    promise = "disk full"
    disk = directory / "disk"
    disk.mkdir()
    with _mounted(disk) as mounted:
        if not mounted:
            return [Row(promise, "measured", "a small file system could not be mounted: run as root", False)]
        with service_under_test(disk / "state") as service, client_of(service, timeout_s=5.0) as client:
            client.submit_all(bodies(40, seed=18))
            full = [reply.at for reply in client.replies][-1]
            _fill(disk / "filler")
            with suppress(Exception):  # forces Postgres to allocate the next segment of the write-ahead log
                service.database.dispose()
                subprocess.run([str(BIN / "python"), "-c", _switch(service)], timeout=10, check=False)
            for body in bodies(40 if size.kills > 50 else 15, seed=19):
                client.submit_once(body)
                time.sleep(0.2)
            replies = client.posted(full + 1e-6, time.time())
            alive = service.up is not None and service.up.poll() is None
            (disk / "filler").unlink()
            freed = time.monotonic()
            recovered = alive and until(lambda: _accepts(client), RECOVERED_WITHIN_S)
            recovered_s = time.monotonic() - freed
            finished_s = service.answered_within(PATIENCE_S) if alive else None
            found = verdict(service, client.accepted) if alive else None
    statuses = {status: sum(r.status == status for r in replies) for status in sorted({r.status for r in replies})}
    clear = all(status in (200, 202, 503, 507) for status in statuses)
    rows = [
        Row(f"{promise}: replies", "accepted and kept, or 503 or 507", f"{statuses} (0: no reply)", clear),
        Row(
            f"{promise}: recovers when there is room",
            "within 60 s, supervisor alive",
            f"after {recovered_s:.1f} s" if recovered else f"no; supervisor {'alive' if alive else 'dead'}",
            recovered,
        ),
    ]
    return [*rows, found.lost_row(promise, finished_s)] if found else rows


def _accepts(client: RecordingClient) -> bool:
    """Whether a request is accepted at the first attempt."""
    return client.submit_once(bodies(1, seed=20)[0]) is not None


def _switch(service: ServiceUnderTest) -> str:
    return f"import psycopg; psycopg.connect({service.facts.database_url!r}).execute('select pg_switch_wal()')"


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as filler, suppress(OSError):
        block = bytes(2**16)
        while True:
            filler.write(block)
    with path.open("ab", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(b"x" * 512)


@contextmanager
def _mounted(directory: Path, *options: str) -> Iterator[bool]:
    """Mount a small file system at this directory; yields false if this user may not mount."""
    arguments = ["mount", "-t", "tmpfs", "-o", ",".join([f"size={DISK}", "mode=755", *options]), "tmpfs"]
    done = subprocess.run([*arguments, str(directory)], capture_output=True, check=False)
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "--lazy", str(directory)], check=False)


def refused_starts(directory: Path, size: Size) -> list[Row]:
    """Start `magnus up` in a read-only directory and with a truncated model: it must end soon with a clear error."""
    disk = directory / "disk"
    disk.mkdir()
    rows = []
    with _mounted(disk, "ro") as mounted:
        if mounted:
            rows.append(_refused(disk / "state", "state directory read-only"))
        else:
            rows.append(Row("state directory read-only", "measured", "could not be mounted: run as root", False))
    half = directory / "half"
    shutil.copytree(BUNDLED_MODEL, half)
    weights = half / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    rows.append(_refused(directory / "state", "model directory half-written", "--model", str(half)))
    return rows


def _refused(state_dir: Path, promise: str, *options: str) -> Row:
    program = up_program(state_dir, "--workers", "1", *options)
    log = state_dir.parents[1] / f"{promise.replace(' ', '-')}.log"
    process = start(program, log)
    began = time.monotonic()
    try:
        ended = until(lambda: process.poll() is not None, REFUSED_WITHIN_S)
    finally:
        stop((program, process))
    output = log.read_text(errors="replace").strip()
    error = next((line for line in output.splitlines() if "rror" in line), output[-200:])
    clear = ended and process.returncode not in (0, None) and "Traceback" not in output and bool(output)
    measured = f"ended after {time.monotonic() - began:.1f} s: {error[:160]}" if ended else "still running after 60 s"
    return Row(promise, "a clear error, no traceback, within 60 s", measured, clear)


def learned_models(service: ServiceUnderTest, size: Size) -> list[Row]:
    """Publish two broken length predictors: one that does not match its digest, and a truncated one that does."""
    train_predictor(service.state_dir, training_examples(TRAINING_EXAMPLES, [], seed=21))
    good = "select version, stored from model_versions where kind = 'length' and active"
    rows = []
    for how in ("tampered", "half-written"):
        ((version, stored),) = service.sql(good)
        broken = bytes(stored)[: len(stored) // 2]
        sha256 = hashlib.sha256(bytes(stored) if how == "tampered" else broken).digest()
        with client_of(service) as client:
            client.submit_all(bodies(10, seed=22))
            service.answered_within(PATIENCE_S)
            bad = f"{how}-{time.time_ns()}"
            service.sql("update model_versions set active = false where kind = 'length' and active")
            service.sql(
                """insert into model_versions (kind, version, active, sha256, stored, scores, data)
                values ('length', :version, true, :sha256, :stored, '{}', '{}')""",
                version=bad,
                sha256=sha256,
                stored=broken,
            )
            if predictor := service.signal("predictor", signal.SIGKILL):  # the new process has no version in memory
                service.replaced("predictor", predictor)
            first = len(client.accepted)
            client.submit_all(bodies(30, seed=23), rate=15.0)
            service.answered_within(PATIENCE_S)
            found = verdict(service, client.accepted)
            by = service.sql(
                "select predictor_version, count(*) from requests where id = any(:ids) group by 1",
                ids=client.accepted[first:],
            )
            service.sql("delete from model_versions where version = :version", version=bad)
            service.sql("update model_versions set active = true where version = :version", version=version)
        served = {str(name): count for name, count in by}
        # while the predictor restarts, the planner uses means or limits instead
        others = [name for name in served if str(version) not in name and name not in ("application mean", "limit")]
        measured = f"{found.completed} of {found.accepted} answered, predicted by {served}; last good: {version}"
        served_well = any(str(version) in name for name in served) and not others
        ok = found.completed == found.accepted and served_well
        rows.append(Row(f"learned model {how}", "refused; the last good one serves", measured, ok))
    return rows


def newer_migration(service: ServiceUnderTest, size: Size) -> list[Row]:
    """Migrate to the schema of a next release: this code must go on serving, also in new processes."""
    ((revision,),) = service.sql("select version_num from alembic_version")
    service.sql("alter table requests add column of_the_future integer not null default 0")
    service.sql("create table things_of_the_future (id integer primary key)")
    service.sql("update alembic_version set version_num = '9999_of_the_future'")
    # a release records at its migration the oldest release that can use its schema
    service.sql(
        """insert into service_state (name, value) values
        ('schema', jsonb_build_object('serves_code_since', cast(:revision as text))) on conflict (name) do nothing""",
        revision=revision,
    )
    try:
        with client_of(service) as client:
            before = service.processes()
            for kind in ("planner", "predictor", "chores", "web", "worker-1"):
                before[kind].terminate()
                service.replaced(kind, before[kind])
            client.submit_all(bodies(30, seed=24), rate=15.0)
            took = service.answered_within(60.0)
            found = verdict(service, client.accepted)
            ready = httpx.get(f"{service.url}/readyz", timeout=10.0).status_code
    finally:
        service.sql("drop table things_of_the_future")
        service.sql("alter table requests drop column of_the_future")
        service.sql("update alembic_version set version_num = :revision", revision=revision)
    measured = f"{found.completed} of {found.accepted} answered, /readyz {ready}"
    ok = found.completed == found.accepted > 0 and took is not None and ready == 200
    return [Row("newer migration under old code", "old code serves on, /readyz 200", measured, ok), _schema(service)]


def _schema(service: ServiceUnderTest) -> Row:
    """Downgrade to an empty schema and upgrade again: tables and migrations must agree."""
    url = make_url(service.facts.database_url).set(database="chaos_schema").render_as_string(hide_password=False)
    create_database(url)
    upgrade(url)
    engine = make_engine(url, pool_size=1, name="chaos")
    output = "downgraded to base and upgraded, no difference"
    try:
        with engine.begin() as connection:
            config = alembic_config(connection)
            command.downgrade(config, "base")
            command.upgrade(config, "head")
            command.check(config)
    except CommandError as error:
        output = str(error)
    finally:
        engine.dispose()
    return Row("migrations: downgrade, upgrade, alembic check", "agree", output[:160], output.startswith("downgraded"))
