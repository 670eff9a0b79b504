"""The engines that `benchmarks.engines` compares: ours, those of transformers, and vLLM without HTTP.

Each serves sequences in order of arrival with at most `batch` rows at once.
"""

import json
import os
import signal
import subprocess
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, Self, TypeVar

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from benchmarks.harness import Json
from benchmarks.outside_engines.server_processes import OFFLINE, Dtype, family_of, signal_all
from cli.output import CommandFailed
from inference.engine_requests import DecodingRequest
from inference.local.engine import Engine
from inference.local.kv.kv_budget import COLUMN_STEP
from inference.local.loading.model_loading import LoadedModel

T = TypeVar("T")

# Engines get this many times the memory of their rows, a rectangle that grows in steps, because memory is not compared.
AMPLE = 4


@dataclass(slots=True)
class EngineRun:
    """The answers of an engine's run, by id, and sums over its iterations."""

    answers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    computed_tokens: int = 0  # the rows of the iterations, summed
    idle_rows: int = 0  # places of a batch without a running row, summed over the iterations in which prompts waited
    possible_rows: int = 0  # all places of a batch, summed over the same iterations
    peak_kv_bytes: int = 0

    def count_iteration(self, batch: int, rows: int, running: int, prompts_wait: bool) -> None:
        """Count one iteration over `rows` rows, of which `running` had not finished."""
        self.computed_tokens += rows
        if prompts_wait:
            self.idle_rows += batch - running
            self.possible_rows += batch

    def count_memory(self, kv_bytes: int) -> None:
        """Keep the largest size of the KV cache."""
        self.peak_kv_bytes = max(self.peak_kv_bytes, kv_bytes)


def kv_budget_bytes(loaded: LoadedModel, rows: int, longest: int) -> int:
    """Return the memory that any engine gets for `rows` rows of at most `longest` tokens."""
    return AMPLE * rows * (longest + COLUMN_STEP) * loaded.delta_bytes


def in_batches(waiting: Sequence[T], batch: int) -> Iterator[Sequence[T]]:
    """Divide the sequence into batches of `batch` items, in order of arrival."""
    return (waiting[start : start + batch] for start in range(0, len(waiting), batch))


def count_static_batch(run: EngineRun, batch: int, rows: Sequence[DecodingRequest], prompts_wait: bool) -> None:
    """Count the iterations of a batch that runs until its longest answer is done."""
    for iteration in range(max(row.limit for row in rows)):
        run.count_iteration(batch, len(rows), sum(row.limit > iteration for row in rows), prompts_wait)


class RunToCompletion:
    """Our engine with static batching: it serves one fixed batch after the other."""

    def __init__(self, loaded: LoadedModel, budget_bytes: int) -> None:
        self._engine = Engine(loaded, budget_bytes)

    def serve(self, sequences: Sequence[DecodingRequest], batch: int) -> EngineRun:
        """Serve all sequences."""
        run = EngineRun()
        for rows in in_batches(sequences, batch):
            results, figures = self._engine.run(rows)
            run.answers |= {row.id: row.generated_ids for row in results}
            run.count_memory(figures.peak_kv_bytes)
            count_static_batch(run, batch, rows, prompts_wait=rows[-1] is not sequences[-1])
        return run


class Continuous:
    """Our engine with continuous batching: a prompt joins for each row that finishes, as in BATON-PD."""

    def __init__(self, loaded: LoadedModel, budget_bytes: int) -> None:
        self._engine = Engine(loaded, budget_bytes)

    def serve(self, sequences: Sequence[DecodingRequest], batch: int) -> EngineRun:
        """Serve all sequences."""
        run, engine, waiting = EngineRun(), self._engine, deque(sequences)
        while waiting or engine.rows:
            joiners = min(batch - len(engine.rows), len(waiting))
            engine.insert([waiting.popleft() for _ in range(joiners)])
            running = len(engine.rows)
            for row in engine.step():
                run.answers[row.id] = row.generated_ids
            run.count_iteration(batch, running, running, prompts_wait=bool(waiting))
            run.count_memory(engine.kv_bytes)
        return run


class WithoutGraphs(Continuous):
    """Our engine with continuous batching, on a device with graphs, but without using them."""

    def serve(self, sequences: Sequence[DecodingRequest], batch: int) -> EngineRun:
        """Serve all sequences."""
        with without(self._engine.loaded, "graphs"):
            return super().serve(sequences, batch)


@contextmanager
def without(loaded: LoadedModel, part: Literal["graphs", "kernels"]) -> Iterator[None]:
    """Turn off a device's graphs or kernels in a model's decoding steps, for engines made within the context."""
    kept = getattr(loaded.decoder, part)
    setattr(loaded.decoder, part, None)
    try:
        yield
    finally:
        setattr(loaded.decoder, part, kept)


# These two are among the fastest pairs on a CPU; page sizes of 16, 32, 64 and 256 and batches of 64, 256 and 512 tokens
# were measured.
PAGE_SIZE = 32
BATCH_TOKENS = 256
NO_ANSWER_S = 60.0  # any value well above the seconds between two answers works


class Generate:
    """Calls `model.generate` on one padded batch after the other; this is BATON's baseline `Benchmark`."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded

    def serve(self, sequences: Sequence[DecodingRequest], batch: int) -> EngineRun:
        """Serve all sequences; a batch runs until its longest answer is done."""
        run, loaded = EngineRun(), self._loaded
        for rows in in_batches(sequences, batch):
            length, answer = max(row.length for row in rows), max(row.limit for row in rows)
            pads = [length - row.length for row in rows]
            tokens = [[loaded.pad_id] * pad + list(row.prompt_ids) for pad, row in zip(pads, rows, strict=True)]
            mask = [[0] * pad + [1] * (length - pad) for pad in pads]
            output = loaded.model.generate(
                torch.tensor(tokens, device=loaded.device),
                attention_mask=torch.tensor(mask, device=loaded.device),
                max_new_tokens=answer,
                do_sample=False,
            )
            for row, ids in zip(rows, output[:, length:].tolist(), strict=True):
                run.answers[row.id] = tuple(ids[: row.limit])
            run.count_memory(len(rows) * (length + answer - 1) * loaded.delta_bytes)
            count_static_batch(run, batch, rows, prompts_wait=rows[-1] is not sequences[-1])
        return run


class GenerateBatch:
    """Drives the manager behind `generate_batch`, because `generate_batch` itself takes one limit for all prompts.

    Its rows cannot be counted from outside, so `computed_tokens` are only those of the answers.
    """

    def __init__(self, loaded: LoadedModel, batch: int, longest: int) -> None:
        """Allocate memory for `batch` rows of `longest` tokens each, prompt and answer together."""
        blocks = batch * (longest // PAGE_SIZE + 1)
        self._kv_bytes = blocks * PAGE_SIZE * loaded.delta_bytes
        self._manager = loaded.model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=loaded.pad_id),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE_SIZE,
                num_blocks=blocks,
                max_batch_tokens=max(BATCH_TOKENS, batch),
                max_requests_per_batch=batch,
            ),
        )
        self._manager.start()

    def serve(self, sequences: Sequence[DecodingRequest], batch: int) -> EngineRun:
        """Serve all sequences; raises TimeoutError if answers stop coming, because the manager only logs its errors."""
        manager, run = self._manager, EngineRun(peak_kv_bytes=self._kv_bytes)
        for row in sequences:
            manager.add_request(list(row.prompt_ids), request_id=row.id, max_new_tokens=row.limit)
        last = perf_counter()
        while len(run.answers) < len(sequences):
            result = manager.get_result(timeout=1.0)
            if result is not None and result.is_finished():
                run.answers[result.request_id] = tuple(result.generated_tokens)
                last = perf_counter()
            elif perf_counter() - last > NO_ANSWER_S:
                raise TimeoutError(f"{len(run.answers)} of {len(sequences)} answers")
        run.computed_tokens = sum(map(len, run.answers.values()))
        return run

    def close(self) -> None:
        """Stop the manager's thread and free its memory."""
        self._manager.stop(block=True)
        self._manager.destroy()


VLLM_SHARE = 0.4  # vLLM gets this share of the GPU's memory, beside our model; enough for the rows compared here
# vLLM looks up n-grams of these lengths, the longest first; our engine's guesses begin with one token, too.
NGRAMS = {"prompt_lookup_max": 4, "prompt_lookup_min": 1}
PROGRAM = Path(__file__).parent / "vllm_rows.py"


class VllmEngine:
    """A vLLM process that serves sequences. It is frozen between its runs, because idle vLLM processes spin."""

    def __init__(
        self,
        python: Path,
        model: Path,
        dtype: Dtype,
        batch: int,
        longest: int,
        threads: int,
        log: Path,
        on_cpu: bool = True,
        guess: int = 0,
    ) -> None:
        """Start vLLM in its own environment and wait until it is ready.

        `batch` is the most rows at once, `longest` the most tokens of a prompt with its answer. vLLM guesses at most
        `guess` tokens at once by the n-grams of prompt and answer.
        """
        of_cpu = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads)}
        with log.open("a") as messages:
            self._process = subprocess.Popen(
                (str(python), str(PROGRAM)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
                env={**os.environ, **OFFLINE, **(of_cpu if on_cpu else {})},
            )
        self._log = log
        # On a CPU vLLM has no graphs, and VLLM_CPU_KVCACHE_SPACE sets its memory.
        options: Json = {"enforce_eager": True} if on_cpu else {"gpu_memory_utilization": VLLM_SHARE}
        if guess:
            options["speculative_config"] = {"method": "ngram", "num_speculative_tokens": guess, **NGRAMS}
        self._ask({"model": str(model), "dtype": dtype, "rows": batch, "longest": longest, "options": options})
        signal_all(family_of(self._process.pid), signal.SIGSTOP)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        signal_all(family_of(self._process.pid), signal.SIGKILL)
        self._process.wait()

    def serve(self, sequences: Sequence[DecodingRequest], batch: int) -> EngineRun:
        """Serve all sequences, with as many at once as vLLM was started for.

        Its rows cannot be counted from outside, so `computed_tokens` are only those of the answers.
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
