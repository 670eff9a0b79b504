"""Several hosts: each process twice, a leader that freezes, clocks five minutes apart."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import Popen

import psutil

from benchmarks.harness import Row, until
from benchmarks.service_start import NO_RATE_LIMIT, addresses, free_port, running
from cli.entry_point import OUR_MODULES
from cli.hosting import process_commands
from cli.hosting.child_process import ChildProgram
from cli.hosting.embedded_servers import create_database, embedded_broker, embedded_postgres
from cli.hosting.readiness import api_is_ready, await_ready, worker_is_alive
from cli.hosting.service_files import RunningService
from models.connections.session import make_engine, make_sessions
from models.schema_upgrade import upgrade
from models.tenants import api_keys
from tests.chaos.exactly_once import WATCH, verdict
from tests.chaos.promised_service import PromisedService
from tests.chaos.recording_client import bodies, client_of, pressure

TAKEN_OVER_WITHIN_S = 15.0  # the promised time until another process has taken over
PATIENCE_S = 180.0
CLOCKS_APART = "+300s"
FAKETIME = [Path(f"/usr/lib/{machine}-linux-gnu/faketime/libfaketimeMT.so.1") for machine in ("x86_64", "aarch64")]
# If libfaketime 0.9.10 does not fake the monotonic clock, sleeps until an instant of that clock fail: Python's
# time.sleep raises EINVAL. If it does, waits for locks never end. So sleeps are selects without files.
SLEEP_BY_SELECT = "import select, time\ntime.sleep = lambda seconds: select.select([], [], [], seconds) and None\n"
# a batch assigned just before the freeze proves nothing; one assigned a second later does
FRESH = "select 1 from batches where assigned_at > to_timestamp(:since) + interval '1 s' limit 1"
# first come, first served: the batch of a request must not be assigned before that of an earlier arrival
JUDGED = """select count(*) filter (where assigned_at < before), count(predicted_tokens),
        (select count(*) from batches where status = 'lost')
    from (select b.assigned_at, r.predicted_tokens, max(b.assigned_at) over (order by r.arrived_at) as before
        from requests r left join batches b on b.id = r.batch_id) x"""


def leaders(service: PromisedService, long: bool) -> Iterator[Row]:
    """Run two planners, beats and trainers, and freeze each in turn, so that the leader is among them."""
    settings = _settings(service.facts.database_url, service.facts.redis_url, service.state_dir)
    planner = process_commands.celery_worker("planner")
    second = replace(planner, command=tuple(part.replace("planner@", "planner-2@") for part in planner.command))
    others = {"planner": second, "beat": process_commands.beat(), "trainer": process_commands.trainer()}
    gaps: dict[str, float] = {}
    with ExitStack() as stack:
        beside = {
            kind: psutil.Process(stack.enter_context(_beside(program, settings, service.state_dir)).pid)
            for kind, program in others.items()
        }
        client = stack.enter_context(client_of(service))
        with pressure(service, client):
            time.sleep(8.0)  # the second planner has started
            for kind, other in beside.items():
                for place, process in (("first", service.processes().get(kind)), ("second", other)):
                    if process is not None and process.is_running():
                        gaps[f"{place} {kind}"] = _gap_while_frozen(service, process)
        finished_s = service.answered_within(PATIENCE_S)
        found = verdict(service, client.accepted)
    name = "two planners, beats, trainers, each frozen in turn"
    yield from found.rows(name, finished_s)
    shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in gaps.items())
    yield Row(f"{name}: take-over", "within 15 s", shown, max(gaps.values()) <= TAKEN_OVER_WITHIN_S)


def _gap_while_frozen(service: PromisedService, process: psutil.Process) -> float:
    """Freeze the process; returns the seconds until a batch is assigned without it."""
    process.send_signal(signal.SIGSTOP)
    since = time.time()
    until(lambda: service.value(FRESH, since=since), 4 * TAKEN_OVER_WITHIN_S)
    gap_s = time.time() - since
    if process.is_running():
        process.send_signal(signal.SIGCONT)
    return gap_s


def clocks(directory: Path, long: bool) -> Iterator[Row]:
    """Run the processes on two hosts, of which either has a clock that is five minutes ahead."""
    library = next((path for path in FAKETIME if path.exists()), None)
    if library is None:
        yield Row("clocks of two hosts 5 min apart", "measured", "no libfaketime: apt install faketime", False)
        return
    for ahead in ("planner's host", "beat's host") if long else ("planner's host",):
        home, name = directory / ahead.split("'")[0], f"clocks 5 min apart, {ahead} ahead"
        home.mkdir()
        with _two_hosts(home, library, ahead) as service, client_of(service) as client:
            service.sql("insert into service_state (name, value) values ('policy', '{\"name\": \"vs\"}')")
            client.submit_all(bodies(80, seed=16), rate=20.0)
            took_s = service.answered_within(60.0)
            found = verdict(service, client.accepted)
            ((inversions, predicted, lost),) = service.sql(JUDGED)
        measured = (
            f"{found.completed} of {found.accepted} answered after {took_s or 60.0:.1f} s, {predicted} predicted, "
            f"{lost} batches taken from a worker, most attempts {found.most_attempts}, {inversions} out of order"
        )
        ok = found.completed == found.accepted == predicted and not lost + inversions and found.most_attempts == 1
        yield Row(name, "no early rescue, no wrong order, ticks read", measured, ok)
        yield found.once_row(name)


@contextmanager
def _two_hosts(directory: Path, library: Path, ahead: str) -> Iterator[PromisedService]:
    """Run the Procfile's processes on two hosts with one Postgres and broker; the clock of host `ahead` is fast."""
    with ExitStack() as stack:
        postgres, broker = embedded_postgres(directory / "postgres"), embedded_broker(directory / "valkey")
        for server in (postgres, broker):
            stack.enter_context(running(server.program, directory / f"{server.program.name}.log"))
        create_database(postgres.url)
        upgrade(postgres.url)
        engine = make_engine(postgres.url, pool_size=4, name="chaos")
        stack.callback(engine.dispose)
        with make_sessions(engine).begin() as session:
            _, key = api_keys.create(session, name="chaos", tenant="default")
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        hosts = {
            "beat's host": [
                process_commands.web("127.0.0.1", port, partial(api_is_ready, url)),
                process_commands.beat(),
                process_commands.worker("near", "cpu", 1, partial(worker_is_alive, engine, "near")),
            ],
            "planner's host": [
                *(process_commands.celery_worker(kind) for kind in ("planner", "predictor", "chores")),
                process_commands.worker("far", "cpu", 1, partial(worker_is_alive, engine, "far")),
            ],
        }
        started: list[tuple[ChildProgram, Popen[bytes]]] = []
        for host, programs in hosts.items():
            environment = _settings(postgres.url, broker.url, directory)
            environment |= _another_clock(directory, library) if host == ahead else {}
            started += [
                (program, stack.enter_context(_beside(program, environment, directory))) for program in programs
            ]
        for program, process in started:
            await_ready(program, process, directory / f"{program.name}.chaos.log")
        facts = RunningService(os.getpid(), url, "", postgres.url, broker.url, "", "")
        service = PromisedService(directory, key, facts, None, engine)
        service.sql(WATCH)
        yield service


def _settings(database_url: str, redis_url: str, state_dir: Path) -> dict[str, str]:
    return {**NO_RATE_LIMIT, **addresses(database_url, redis_url), "MAGNUS_STATE_DIR": str(state_dir)}


def _another_clock(directory: Path, library: Path) -> dict[str, str]:
    """The environment of a Python process whose wall clock, and no other clock, is ahead."""
    (directory / "sitecustomize.py").write_text(SLEEP_BY_SELECT)
    paths = os.pathsep.join(filter(None, [str(directory), str(OUR_MODULES), os.environ.get("PYTHONPATH")]))
    faked = {"LD_PRELOAD": str(library), "FAKETIME": CLOCKS_APART, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    return {**faked, "PYTHONPATH": paths}


def _beside(
    program: ChildProgram, environment: dict[str, str], directory: Path
) -> AbstractContextManager[Popen[bytes]]:
    named = replace(program, env={**program.env, **environment})
    return running(named, directory / f"{program.name}.chaos.log", wait=False)
