"""The engines of transformers: `model.generate` in fixed batches, and `generate_batch`, its continuous batching."""

from collections.abc import Sequence as Several
from time import perf_counter

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from benchmarks.engines.our_engines import EngineRun, count_static_batch, in_batches
from inference.local.model_loading import LoadedModel
from inference.sequences import Sequence

# Of page sizes 16, 32, 64 and 256 with 64, 256 and 512 tokens a batch, this pair was one of the fastest on a CPU.
PAGE_SIZE = 32
BATCH_TOKENS = 256
NO_ANSWER_S = 60.0  # any value well above the seconds between two answers does


class Generate:
    """`model.generate` on one padded batch after the other; BATON's baseline `Benchmark`."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded

    def serve(self, sequences: Several[Sequence], batch: int) -> EngineRun:
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
    """The manager behind `generate_batch`, used directly because `generate_batch` takes one limit for all prompts.

    Its rows cannot be counted from outside, so `computed_tokens` are only those of the answers.
    """

    def __init__(self, loaded: LoadedModel, batch: int, longest: int) -> None:
        """Allocate memory for `batch` rows of `longest` tokens, prompt and answer."""
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

    def serve(self, sequences: Several[Sequence], batch: int) -> EngineRun:
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
        """Stop its thread and free its memory."""
        self._manager.stop(block=True)
        self._manager.destroy()
