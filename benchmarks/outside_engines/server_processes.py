"""Starts real servers of other engines on this machine, and stops, kills, freezes and restarts them.

`transformers` is part of our development environment; `make engines` installs `vllm` and `llamacpp`.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
import psutil

from benchmarks.outside_engines.engine_environments import ENGINES_DIR, HERE, engine_python
from benchmarks.service_start import free_port
from cli.hosting.child_process import ChildProgram, kill, start, stop
from cli.hosting.readiness import await_ready
from cli.output import CommandFailed

EngineKind = Literal["transformers", "vllm", "llamacpp"]
Dtype = Literal["float32", "bfloat16", "float16"]

READY_WITHIN_S = 300.0  # vLLM took 35 s to start on two idle cores, and several times as long on busy ones
STOP_WITHIN_S = 10.0  # an engine that is told to stop may first finish its requests
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True)
class ServerTerms:
    """The settings of every server in a comparison: the model, rows at once, tokens of KV cache, data type."""

    model: Path
    name: str = "bundled"
    max_rows: int = 64
    kv_tokens: int = 16384
    block_tokens: int = 32  # the tokens of a page of vLLM's cache; on a CPU vLLM allows multiples of 32
    dtype: Dtype = "float32"
    threads: int = os.cpu_count() or 1
    cores: tuple[int, ...] = ()  # the cores that the server may use; if empty, all
    nice: int = 0  # the niceness of the server's processes and of their session
    on_demand: bool = False  # `transformers serve` loads any model that a request names, instead of only `model`
    flags: tuple[str, ...] = ()  # further options of vLLM's command


class EngineServer:
    """A server process with its children; its address stays the same over restarts."""

    def __init__(self, kind: EngineKind, terms: ServerTerms, directory: Path) -> None:
        """Prepare the server without starting it; its log will be in `directory`."""
        self.kind, self.terms, self.log = kind, terms, directory / f"{kind}.log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.model = str(terms.model) if kind == "transformers" else terms.name  # the model's name in requests
        command, environment = COMMANDS[kind](terms, self.port)
        if terms.cores:
            command = ("taskset", "--cpu-list", ",".join(map(str, terms.cores)), *command)
        self._program = ChildProgram(
            kind,
            command,
            env=OFFLINE | environment,
            nice=terms.nice,
            ready=self.answers,
            ready_within_s=READY_WITHIN_S,
            stop_within_s=STOP_WITHIN_S,
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, wait: bool = True) -> None:
        """Start the server and, if `wait`, return when it answers; raises ProgramFailed."""
        self._process = start(self._program, self.log)
        if wait:
            self.await_ready()

    def await_ready(self) -> None:
        """Wait until the started server answers; raises ProgramFailed."""
        await_ready(self._program, self._running(), self.log)

    def answers(self) -> bool:
        """Return whether the server reports that it is healthy."""
        try:
            return httpx.get(f"{self.url}/health", timeout=5).is_success
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        """Stop the server, by force if it does not end by itself."""
        if self._process is not None:
            stop((self._program, self._process))
            self._process = None

    def kill(self) -> None:
        """Send SIGKILL to the server and its children, and wait until all have ended."""
        family, process = self.processes(), self._running()
        kill(process)
        process.wait()
        psutil.wait_procs(family, timeout=10)
        self._process = None

    def freeze(self) -> None:
        """Send SIGSTOP to the server: its connections stay open, but nothing answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Send SIGCONT to the server, which then goes on."""
        self._signal(signal.SIGCONT)

    def processes(self) -> list[psutil.Process]:
        """Return the server's processes: the server with its children."""
        return [] if self._process is None else family_of(self._process.pid)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ValueError(f"{self.kind} was not started")
        return self._process

    def _signal(self, number: signal.Signals) -> None:
        signal_all(self.processes(), number)


def family_of(pid: int) -> list[psutil.Process]:
    """Return a process with its descendants, or an empty list if it has ended."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def signal_all(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to the processes that still live."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


@contextmanager
def running_engine(kind: EngineKind, terms: ServerTerms, directory: Path) -> Iterator[EngineServer]:
    """Run a server until the context ends."""
    server = EngineServer(kind, terms, directory)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _transformers(terms: ServerTerms, port: int) -> tuple[tuple[str, ...], dict[str, str]]:
    hub = ENGINES_DIR / "empty-hub-cache"  # /v1/models reads the hub's folder and fails if there is none
    hub.mkdir(parents=True, exist_ok=True)
    program = "from transformers.cli.transformers import main; main()"
    options = {
        "--cb-block-size": terms.block_tokens,
        "--cb-num-blocks": terms.kv_tokens // terms.block_tokens,
        "--cb-max-batch-tokens": 512,  # the largest batch that was tried in benchmarks.engines
        "--dtype": terms.dtype,
        "--device": "cpu",
        "--host": "127.0.0.1",
        "--port": port,
    }
    flags = [str(part) for option in options.items() for part in option]
    pinned = () if terms.on_demand else (str(terms.model),)
    command = (sys.executable, "-c", program, "serve", *pinned, "--continuous-batching", *flags)
    return command, {"HF_HUB_CACHE": str(hub), "OMP_NUM_THREADS": str(terms.threads)}


def _vllm(terms: ServerTerms, port: int) -> tuple[tuple[str, ...], dict[str, str]]:
    positions = json.loads((terms.model / "config.json").read_text())["max_position_embeddings"]
    options = {
        "--model": terms.model,
        "--served-model-name": terms.name,
        "--dtype": terms.dtype,
        "--max-num-seqs": terms.max_rows,
        "--block-size": terms.block_tokens,
        "--num-gpu-blocks-override": terms.kv_tokens // terms.block_tokens,
        # vLLM keeps one block for itself.
        "--max-model-len": min(terms.kv_tokens - terms.block_tokens, positions),
        "--scheduling-policy": "priority",  # requests of equal priority are served first come, first served
        "--host": "127.0.0.1",
        "--port": port,
    }
    flags = [str(part) for option in options.items() for part in option]
    module = "vllm.entrypoints.openai.api_server"  # the command `vllm` would first look for a package named `vllm`
    flags += ["--enforce-eager", "--no-enable-log-requests", *terms.flags]
    # Threads are not bound to cores: bound threads wait whenever another process uses their core.
    threads = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(terms.threads)}
    return (str(engine_python("vllm")), "-m", module, *flags), {"VLLM_CPU_KVCACHE_SPACE": "1", **threads}


def _llamacpp(terms: ServerTerms, port: int) -> tuple[tuple[str, ...], dict[str, str]]:
    options = {
        "--model": gguf_file(terms.model, terms.dtype),
        "--alias": terms.name,
        "--port": port,
        "--slots": terms.max_rows,
        "--kv-tokens": terms.kv_tokens,
        "--kv-type": {"float32": "f32", "bfloat16": "bf16"}[terms.dtype],
        "--threads": terms.threads,
    }
    flags = [str(part) for option in options.items() for part in option]
    return (str(engine_python("llamacpp")), str(HERE / "llamacpp_server.py"), *flags), {}


COMMANDS: dict[EngineKind, Callable[[ServerTerms, int], tuple[tuple[str, ...], dict[str, str]]]] = {
    "transformers": _transformers,
    "vllm": _vllm,
    "llamacpp": _llamacpp,
}


def gguf_file(model: Path, dtype: Dtype) -> Path:
    """Return the model as a file for llama.cpp, converted unless an earlier call did; raises CommandFailed."""
    weights, converter = model / "model.safetensors", HERE / "gguf_conversion.py"
    of = f"{model.resolve()} {weights.stat().st_size} {weights.stat().st_mtime_ns} {dtype} {converter.read_text()}"
    file = ENGINES_DIR / "gguf" / f"{model.name}-{dtype}-{hashlib.sha256(of.encode()).hexdigest()[:12]}.gguf"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}")
        command = [str(engine_python("llamacpp")), str(converter), str(model), str(unfinished), dtype]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            unfinished.unlink(missing_ok=True)
            raise CommandFailed(f"{model} could not be converted for llama.cpp: {done.stderr[-500:]}")
        unfinished.rename(file)
    return file
