"""BATON's baselines PD and BATON without PD (section 5.1), built from the parts of our engine.

They differ from BATON-PD, our continuous engine, only in the scheme and not in the speed of the loop. The third
baseline, `Benchmark`, is `model.generate`.
"""

import random
from collections import deque
from collections.abc import Sequence as Several

import torch

from benchmarks.engines.compared_engines import EngineRun, count_static_batch, in_batches
from inference.local.batch_rows import BatchRow
from inference.local.kv.kv_cache import KvCache, RowCopy
from inference.local.loading.model_loading import LoadedModel
from inference.local.running_batch import RunningBatch
from inference.local.tokens.next_tokens import next_tokens
from inference.sequences import Sequence

# Batches that PD prefills ahead, sorted by length. More batches pad less and keep more rows in host memory; not tuned.
WINDOW = 4


class PrefillDecode:
    """PD: prefill in groups of similar length, then decode random batches of prefilled rows to completion."""

    def __init__(self, loaded: LoadedModel, budget_bytes: int) -> None:
        self._loaded = loaded
        self._kv = KvCache(loaded.layout, budget_bytes)
        self._rng = random.Random(0)

    @torch.inference_mode()
    def serve(self, sequences: Several[Sequence], batch: int) -> EngineRun:
        """Serve all sequences."""
        run = EngineRun()
        for window in in_batches(sequences, WINDOW * batch):
            prefilled = [row for group in in_batches(self._by_length(window), batch) for row in self._prefill(group)]
            self._rng.shuffle(prefilled)
            for rows in in_batches(prefilled, batch):
                self._decode([row for row, _ in rows], [host for _, host in rows])
                run.answers |= {row.sequence.id: tuple(row.generated) for row, _ in rows}
                run.count_memory(self._kv.nbytes)
                count_static_batch(run, batch, [row.sequence for row, _ in rows], len(run.answers) < len(sequences))
        return run

    def _by_length(self, window: Several[Sequence]) -> list[BatchRow]:
        ordered = sorted(window, key=lambda sequence: sequence.length)
        return [BatchRow(sequence, number, self._loaded.max_positions) for number, sequence in enumerate(ordered)]

    def _prefill(self, group: Several[BatchRow]) -> list[tuple[BatchRow, RowCopy]]:
        RunningBatch(self._loaded, self._kv).prefill(group, range(len(group)))
        return [(row, self._kv.row_copy(index, row.cached_tokens)) for index, row in enumerate(group)]

    def _decode(self, rows: list[BatchRow], hosts: list[RowCopy]) -> None:
        batch = RunningBatch(self._loaded, self._kv)
        batch.reserve({index: row.cached_tokens + 1 for index, row in enumerate(rows)})
        for index, (row, host) in enumerate(zip(rows, hosts, strict=True)):
            self._kv.write_row(index, row.cached_tokens, host)
            batch.add([row], [index])
        while batch.any_running():
            batch.decode()


class VectorShaping(RunningBatch):
    """A batch that prefills joiners in the same forward pass in which it decodes the running rows."""

    def join_and_decode(self, joiners: Several[BatchRow]) -> None:
        """Run one forward pass over [rows, longest joiner] tokens: one token and padding for each running row (4.1)."""
        rows = [*self.rows, *joiners]
        running = len(self.rows)
        length = max(len(row.token_ids) for row in joiners)
        starts = [row.cached_tokens for row in self.rows] + [0] * len(joiners)
        fed = [[row.generated[-1]] for row in self.rows] + [list(row.token_ids) for row in joiners]
        self.reserve({index: start + length for index, start in enumerate(starts)})
        kv, device = self.kv, self.loaded.device
        tokens = torch.tensor([ids + [self.loaded.pad_id] * (length - len(ids)) for ids in fed], device=device)
        positions = torch.tensor(starts, device=device)[:, None] + torch.arange(length, device=device)
        (of,) = kv.arrangement.slots
        head_rows = torch.arange(len(rows) * of.heads, device=device).view(len(rows), -1, 1)
        slots = (head_rows * kv.arrangement.columns + positions[:, None]).view(-1)
        width = kv.prepare_decode({of: slots}, starts, max(starts) + length)
        hidden = torch.arange(width, device=device) > positions[:, None, :, None]
        output = self.loaded.decoder(
            tokens,
            attention_mask=hidden.to(kv.layout.dtype).mul_(torch.finfo(kv.layout.dtype).min),
            position_ids=positions.clamp_(max=self.loaded.max_positions - 1),
            past_key_values=kv,
            use_cache=True,
            logits_to_keep=torch.tensor([[len(ids) - 1] for ids in fed], device=device),
        )
        self.add(joiners, range(running, len(rows)))
        self._retire(rows, next_tokens(output.logits[:, -1], rows, self.loaded.eos_ids))


class BatonBaseline:
    """BATON without PD: in an iteration with joiners each running row is padded to their prefill, as in Orca."""

    def __init__(self, loaded: LoadedModel, budget_bytes: int) -> None:
        self._loaded = loaded
        self._kv = KvCache(loaded.layout, budget_bytes)

    @torch.inference_mode()
    def serve(self, sequences: Several[Sequence], batch: int) -> EngineRun:
        """Serve all sequences."""
        run, running = EngineRun(), VectorShaping(self._loaded, self._kv)
        waiting = deque(BatchRow(sequence, 0, self._loaded.max_positions) for sequence in sequences)
        while waiting or running.rows:
            joiners = [waiting.popleft() for _ in range(min(batch - len(running.rows), len(waiting)))]
            if joiners:
                running.join_and_decode(joiners)
            else:
                running.decode()
            run.count_iteration(batch, len(running.rows), len(running.rows), prompts_wait=bool(waiting))
            run.answers |= {row.id: row.generated_ids for row in running.take_finished()}
            running.compact()
            run.count_memory(self._kv.nbytes)
        return run
