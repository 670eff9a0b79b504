"""Starts a new service for one benchmark run: `magnus up` in its own directory, with our workers or a peer's."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.live.live_peers import PEERS, peer_programs
from cli.commands.demo_command import train_predictor
from cli.demo_workload import DemoArrival
from cli.hosting.child_process import ChildProgram, start, stop
from cli.hosting.process_commands import BIN
from cli.hosting.readiness import await_ready
from cli.hosting.service_files import RunningService, running_service

NO_RATE_LIMIT = "1000000/minute"  # any rate above those of the benchmarks does
READY_WITHIN_S = 300.0  # any value well above a start, which takes seconds, does
STOP_WITHIN_S = 60.0  # any value well above a stop does


@contextmanager
def fresh_service(
    name: str, workers: int, kv_budget: str, arrivals: list[DemoArrival], seed: int
) -> Iterator[tuple[RunningService, Path]]:
    """Run a service until the context ends: under the policy `name` and pretrained, or served by the peer `name`."""
    is_peer = name in PEERS
    with tempfile.TemporaryDirectory(prefix="magnus-live-") as directory:
        state_dir = Path(directory)
        options = ["--state-dir", directory, "--port", "0", "--flower-port", "0", "--kv-budget", kv_budget]
        options += ["--workers", "0" if is_peer else str(workers)]
        options += [] if is_peer else ["--policy", name]
        os.environ["MAGNUS_RATE_LIMIT"] = NO_RATE_LIMIT
        up = ChildProgram(
            "magnus up",
            (str(BIN / "magnus"), "up", "--json", *options),
            ready=lambda: running_service(state_dir) is not None,
            ready_within_s=READY_WITHIN_S,
            stop_within_s=STOP_WITHIN_S,
        )
        log = state_dir / "up.log"
        running = [(up, start(up, log))]
        try:
            await_ready(*running[0], log)
            service = RunningService(**json.loads((state_dir / "service.json").read_text()))
            if is_peer:
                for program in peer_programs(name, workers, service):
                    peer_log = state_dir / f"{program.name}.log"
                    running.append((program, start(program, peer_log)))
                    await_ready(*running[-1], peer_log)
            else:
                train_predictor(state_dir, arrivals, seed)
            yield service, state_dir
        finally:
            stop(*reversed(running))
