"""vLLM beside our engine: its own engine without HTTP, in its own environment, stopped while others are timed."""

import json
import os
import signal
import subprocess
from collections.abc import Sequence as Several
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.engines.our_engines import EngineRun
from benchmarks.outside_engines.engine_environments import engine_python
from benchmarks.outside_engines.server_processes import OFFLINE, Dtype, family_of, signal_all
from cli.command_errors import CommandFailed
from inference.sequences import Sequence

PROGRAM = Path(__file__).parent / "vllm_rows.py"


class VllmEngine:
    """A process of vLLM's that serves sequences; frozen between its runs, because its idle processes spin."""

    def __init__(self, model: Path, dtype: Dtype, batch: int, longest: int, threads: int, log: Path) -> None:
        """Start it and wait until it is ready.

        `batch` is the most rows at once, `longest` the most tokens of a prompt with its answer.
        """
        threads_of = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads)}
        with log.open("a") as messages:
            self._process = subprocess.Popen(
                (str(engine_python("vllm")), str(PROGRAM)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
                env={**os.environ, **OFFLINE, "VLLM_CPU_KVCACHE_SPACE": "1", **threads_of},
            )
        self._log = log
        self._ask({"model": str(model), "dtype": dtype, "rows": batch, "longest": longest})
        signal_all(family_of(self._process.pid), signal.SIGSTOP)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal_all(family_of(self._process.pid), signal.SIGKILL)
        self._process.wait()

    def serve(self, sequences: Several[Sequence], batch: int) -> EngineRun:
        """Serve all sequences, as many at once as it was started for.

        Its rows cannot be counted from outside, so only the tokens of the answers are.
        """
        signal_all(family_of(self._process.pid), signal.SIGCONT)
        answers = self._ask([(row.prompt_ids, row.limit) for row in sequences])
        signal_all(family_of(self._process.pid), signal.SIGSTOP)
        run = EngineRun({row.id: tuple(ids) for row, ids in zip(sequences, answers, strict=True)})
        run.computed_tokens = sum(map(len, run.answers.values()))
        return run

    def _ask(self, question: Any) -> Any:
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        if pipe_in is None or pipe_out is None:
            raise ValueError("vLLM was started without pipes")
        pipe_in.write(json.dumps(question) + "\n")
        pipe_in.flush()
        if answer := pipe_out.readline():
            return json.loads(answer)
        raise CommandFailed(f"vLLM ended; its messages are in {self._log}")
