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

from benchmarks.chaos.exactly_once import WATCH, verdict
from benchmarks.chaos.promise_rows import Row, Size
from benchmarks.chaos.recording_client import RecordingClient, bodies, client_of, pressure
from benchmarks.chaos.servers import own_servers
from benchmarks.chaos.service_under_test import ServiceUnderTest
from benchmarks.harness import until
from benchmarks.service_start import NO_RATE_LIMIT, addresses, free_port, running
from cli.entry_point import OUR_MODULES
from cli.hosting import process_commands
from cli.hosting.child_process import ChildProgram
from cli.hosting.readiness import api_is_ready, await_ready, worker_is_alive
from cli.hosting.service_files import RunningService
from models.connections.schema_upgrade import upgrade
from models.session import make_engine, make_sessions
from models.tenants import api_keys

TAKEN_OVER_WITHIN_S = 15.0  # the promised time until another process has taken over
PATIENCE_S = 180.0
CLOCKS_APART = "+300s"
FAKETIME = [Path(f"/usr/lib/{machine}-linux-gnu/faketime/libfaketimeMT.so.1") for machine in ("x86_64", "aarch64")]

# If libfaketime 0.9.10 does not fake the monotonic clock, sleeps until an instant of that clock fail: Python's
# time.sleep raises EINVAL. If it does, waits for locks never end. So sleeps are selects without files.
SLEEP_BY_SELECT = "import select, time\ntime.sleep = lambda seconds: select.select([], [], [], seconds) and None\n"


def leaders(service: ServiceUnderTest, size: Size) -> list[Row]:
    """Run two planners, beats and trainers, and freeze each in turn, so that the leader is among them."""
    servers = addresses(service.facts.database_url, service.facts.redis_url)
    settings = {**NO_RATE_LIMIT, **servers, "MAGNUS_STATE_DIR": str(service.state_dir)}
    planner = process_commands.celery_worker("planner")
    second = replace(planner, command=tuple(part.replace("planner@", "planner-2@") for part in planner.command))
    gaps: dict[str, float] = {}
    with ExitStack() as stack:
        extra = [
            psutil.Process(stack.enter_context(_beside(program, settings, service.state_dir)).pid)
            for program in (second, process_commands.beat(), process_commands.trainer())
        ]
        client = stack.enter_context(client_of(service))
        with pressure(service, client):
            time.sleep(8.0)  # the second planner has started
            for kind, other in (("planner", extra[0]), ("beat", extra[1]), ("trainer", extra[2])):
                for place, process in (("first", service.processes().get(kind)), ("second", other)):
                    if process is not None and process.is_running():
                        gaps[f"{place} {kind}"] = _gap_while_frozen(service, process)
        finished_s = service.answered_within(PATIENCE_S)
        found = verdict(service, client.accepted)
    shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in gaps.items())
    name = "two planners, beats, trainers, each frozen in turn"
    return [
        found.lost_row(name, finished_s),
        found.once_row(name),
        Row(f"{name}: take-over", "within 15 s", shown, max(gaps.values()) <= TAKEN_OVER_WITHIN_S),
    ]


def _gap_while_frozen(service: ServiceUnderTest, process: psutil.Process) -> float:
    """Freeze the process; returns the seconds until a batch is assigned without it."""
    process.send_signal(signal.SIGSTOP)
    since = time.time()
    # a batch assigned just before the freeze proves nothing; one assigned a second later does
    fresh = "select 1 from batches where assigned_at > to_timestamp(:since) + interval '1 s' limit 1"
    until(lambda: service.value(fresh, since=since), 4 * TAKEN_OVER_WITHIN_S)
    gap = time.time() - since
    if process.is_running():
        process.send_signal(signal.SIGCONT)
    return gap


def clocks(directory: Path, size: Size) -> list[Row]:
    """Run the processes on two hosts, of which either has a clock that is five minutes ahead."""
    library = next((path for path in FAKETIME if path.exists()), None)
    if library is None:
        return [Row("clocks of two hosts 5 min apart", "measured", "no libfaketime: apt install faketime", False)]
    rows = []
    for ahead in size.clocks_ahead:
        with ExitStack() as stack:
            home = directory / ahead.split("'")[0]
            home.mkdir()
            service = stack.enter_context(_two_hosts(home, library, ahead))
            service.sql("insert into service_state (name, value) values ('policy', '{\"name\": \"vs\"}')")
            client = stack.enter_context(client_of(service))
            began = time.time()
            client.submit_all(bodies(80, seed=16), rate=20.0)
            took = service.answered_within(60.0)
            found = verdict(service, client.accepted)
            rows.append(_judge_clocks(service, client, ahead, took, began))
            rows.append(found.once_row(f"clocks 5 min apart, {ahead} ahead"))
    return rows


def _judge_clocks(
    service: ServiceUnderTest, client: RecordingClient, ahead: str, took: float | None, began: float
) -> Row:
    found = verdict(service, client.accepted)
    lost = service.value("select count(*) from batches where status = 'lost'")
    # first come, first served: the batch of a request must not be assigned before that of an earlier arrival
    inversions = service.value(
        """select count(*) from (select b.assigned_at, max(b.assigned_at) over (order by r.arrived_at) as before
        from requests r join batches b on b.id = r.batch_id) x where assigned_at < before"""
    )
    predicted = service.value("select count(*) from requests where predicted_tokens is not null")
    shown = "not within 60 s" if took is None else f"after {took:.1f} s"
    measured = (
        f"{found.completed} of {found.accepted} answered {shown}, {lost} batches taken from a worker, most attempts "
        f"{found.most_attempts}, {inversions} out of order, {predicted} predicted (ticks read)"
    )
    ok = found.completed == found.accepted == predicted and not lost and not inversions and found.most_attempts == 1
    return Row(f"clocks 5 min apart, {ahead} ahead", "no early rescue, no wrong order, ticks read", measured, ok)


@contextmanager
def _two_hosts(directory: Path, library: Path, ahead: str) -> Iterator[ServiceUnderTest]:
    """Run the Procfile's processes on two hosts with one Postgres and broker; the clock of host `ahead` is fast."""
    with ExitStack() as stack:
        servers = stack.enter_context(own_servers(directory))
        upgrade(servers.database_url)
        engine = make_engine(servers.database_url, pool_size=4, name="chaos")
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
                process_commands.celery_worker("planner"),
                process_commands.celery_worker("predictor"),
                process_commands.celery_worker("chores"),
                process_commands.worker("far", "cpu", 1, partial(worker_is_alive, engine, "far")),
            ],
        }
        started: list[tuple[ChildProgram, Popen[bytes]]] = []
        for host, programs in hosts.items():
            environment = {
                **NO_RATE_LIMIT,
                **addresses(servers.database_url, servers.redis_url),
                "MAGNUS_STATE_DIR": str(directory),
            }
            if host == ahead:
                environment |= _another_clock(directory, library)
            beside = [stack.enter_context(_beside(program, environment, directory)) for program in programs]
            started += zip(programs, beside, strict=True)
        for program, process in started:
            await_ready(program, process, directory / f"{program.name}.chaos.log")
        facts = RunningService(os.getpid(), url, "", servers.database_url, servers.redis_url, "", "")
        service = ServiceUnderTest(directory, url, key, facts, None, engine)
        service.sql(WATCH)
        yield service


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
