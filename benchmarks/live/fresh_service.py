"""Starts a new service for one benchmark run: `magnus up` in its own directory, with our workers or a peer's."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.live.live_peers import PEERS, peer_programs
from cli.commands.demo_command import train_predictor
from cli.demo_workload import DemoArrival
from cli.hosting.child_process import ChildProgram, start, stop
from cli.hosting.process_commands import BIN
from cli.hosting.readiness import await_ready
from cli.hosting.service_files import RunningService, running_service

NO_RATE_LIMIT = "1000000/minute"  # any rate above those of the benchmarks does
LONGEST_WAIT_S = "600"  # of one call; the most that can be set
MANY_CALLS = "1000"  # of one client at once; any number above those of the benchmarks does
READY_WITHIN_S = 300.0  # any value well above a start, which takes seconds, does
STOP_WITHIN_S = 60.0  # any value well above a stop does


@dataclass(frozen=True)
class ServiceOptions:
    """What the services of one comparison have in common; `model` None is the bundled one.

    With `engines`, addresses of servers, those serve in place of workers of ours.
    """

    workers: int
    kv_budget: str
    model: str | None = None
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    engines: tuple[str, ...] = ()
    pretrained: bool = False  # the length predictor knows the toy applications before the first request

    def environment(self) -> dict[str, str]:
        """The settings that `magnus up` has no option for."""
        limits = {
            "MAGNUS_MAX_PROMPT_TOKENS": self.max_prompt_tokens,
            "MAGNUS_MAX_OUTPUT_TOKENS": self.max_output_tokens,
        }
        given = {name: str(limit) for name, limit in limits.items() if limit is not None}
        return {
            "MAGNUS_RATE_LIMIT": NO_RATE_LIMIT,
            "MAGNUS_TENANT_WAITING_CALLS": MANY_CALLS,
            "MAGNUS_WAIT_S": LONGEST_WAIT_S,
            **given,
        }


@contextmanager
def fresh_service(
    name: str, options: ServiceOptions, arrivals: list[DemoArrival], seed: int
) -> Iterator[tuple[RunningService, Path]]:
    """Run a service until the context ends: under the policy `name`, or served by the peer `name`.

    A peer has no length predictor.
    """
    is_peer = name in PEERS
    with tempfile.TemporaryDirectory(prefix="magnus-live-") as directory:
        state_dir = Path(directory)
        flags = ["--state-dir", directory, "--port", "0", "--flower-port", "0", "--kv-budget", options.kv_budget]
        flags += [] if options.engines else ["--workers", "0" if is_peer else str(options.workers)]
        flags += [flag for url in options.engines for flag in ("--engine", url)]
        flags += [] if is_peer else ["--policy", name]
        flags += ["--model", options.model] if options.model else []
        up = ChildProgram(
            "magnus up",
            (str(BIN / "magnus"), "up", "--json", *flags),
            env=options.environment(),
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
                for program in peer_programs(name, options.workers, service, options.model):
                    peer_log = state_dir / f"{program.name}.log"
                    running.append((program, start(program, peer_log)))
                    await_ready(*running[-1], peer_log)
            elif options.pretrained:
                train_predictor(state_dir, arrivals, seed)
            yield service, state_dir
        finally:
            stop(*reversed(running))
