"""The service that a demo starts for itself, with a length predictor that knows requests like those to come."""

import json
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console

from cli.hosting.child_process import ChildProgram, ProgramFailed, running
from cli.hosting.process_commands import BIN
from cli.hosting.readiness import await_ready
from cli.hosting.service_access import VARIANTS, settings_with
from cli.hosting.service_files import api_address, keep_private, running_service


@dataclass(frozen=True)
class DemoService:
    """The common parts of a demo's services: options of `magnus up`, and requests with known answers to learn from."""

    options: tuple[str, ...] = ()
    examples: tuple[Mapping[str, str | int], ...] = ()
    model: str | None = None  # the model's directory or its server's address; None means the bundled model


@contextmanager
def own_service(
    console: Console, state_dir: Path, policy: str | None, service: DemoService
) -> Iterator[tuple[str, str]]:
    """Start a service, train its predictor, yield its URL and key, and stop it; `policy` is a name or a variant."""
    policy, environment = VARIANTS.get(policy or "", (policy, {}))
    keep_private(state_dir)
    console.print(
        f"starting Postgres, broker, API, planner, predictor, chores, workers, trainer, Flower in {state_dir} …"
    )
    command = [str(BIN / "magnus"), "up", "--json", "--state-dir", str(state_dir), "--port", "0", "--flower-port", "0"]
    program = ChildProgram(
        "magnus up",
        (*command, *(("--policy", policy) if policy else ()), *service.options),
        ready=lambda: (facts := running_service(state_dir)) is not None and facts.pid == process.pid,
        ready_within_s=600.0,
        stop_within_s=60.0,
        env=environment,
        orphan_signal=signal.SIGTERM,  # `magnus up` then stops everything that it started
    )
    log = state_dir / "up.log"
    log.unlink(missing_ok=True)
    with running(program, log) as process:
        await_ready(program, process, log)
        if service.examples:
            console.print(f"teaching the length predictor {len(service.examples)} other requests …")
            own = {"MAGNUS_MODEL": service.model} if service.model else {}
            train_predictor(state_dir, service.examples, environment | own)
        yield api_address(settings_with(state_dir=state_dir))


def train_predictor(
    state_dir: Path, examples: Iterable[Mapping[str, Any]], environment: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Run `magnus train` on requests with known answers, with the service's settings; raises ProgramFailed."""
    data, log = state_dir / "examples.jsonl", state_dir / "train.log"
    data.write_text("".join(json.dumps(example) + "\n" for example in examples))
    command = (str(BIN / "magnus"), "train", "--force", "--state-dir", str(state_dir), "--data", str(data))
    program = ChildProgram("magnus train", command, env=environment, stop_within_s=0.0)
    with running(program, log) as process:
        if process.wait() != 0:
            raise ProgramFailed(program.name, f"ended with {process.returncode}", log)
