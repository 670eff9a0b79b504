"""BATON's two baselines beside `Benchmark` (`model.generate`), built from the product's own parts (section 5.1).

So what differs from BATON-PD, the product's continuous engine, is the scheme alone, not the speed of the loop.
"""

import random
from collections import deque
from collections.abc import Sequence as Several

import torch

from benchmarks.engines.our_engines import KV_BUDGET_BYTES, EngineRun, count_static, in_batches
from inference.local.batch_rows import BatchRow
from inference.local.kv_cache import HostRow, KvCache
from inference.local.model_loading import LoadedModel
from inference.local.running_batch import RunningBatch
from inference.sequences import Sequence

WINDOW = 4  # batches that PD prefills ahead, sorted by length


class PrefillDecode:
    """PD: prefill in groups of similar length, then decode random batches of prefilled rows to completion."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._kv = KvCache(loaded.layout, KV_BUDGET_BYTES)
        self._chance = random.Random(0)

    @torch.inference_mode()
    def serve(self, sequences: Several[Sequence], batch: int) -> EngineRun:
        """Serve everything."""
        served = EngineRun()
        for window in in_batches(sequences, WINDOW * batch):
            prefilled = [row for group in in_batches(self._by_length(window), batch) for row in self._prefill(group)]
            self._chance.shuffle(prefilled)
            for rows in in_batches(prefilled, batch):
                self._decode([row for row, _ in rows], [host for _, host in rows])
                served.answers |= {row.sequence.id: tuple(row.generated) for row, _ in rows}
                served.held(self._kv.nbytes)
                count_static(served, batch, [row.sequence for row, _ in rows], len(served.answers) < len(sequences))
        return served

    def _by_length(self, window: Several[Sequence]) -> list[BatchRow]:
        ordered = sorted(window, key=lambda sequence: sequence.length)
        return [BatchRow(sequence, number, self._loaded.max_positions) for number, sequence in enumerate(ordered)]

    def _prefill(self, group: Several[BatchRow]) -> list[tuple[BatchRow, HostRow]]:
        running = RunningBatch(self._loaded, self._kv)
        running.prefill(group, range(len(group)))
        return [(row, self._kv.row_to_host(place, row.cached)) for place, row in enumerate(group)]

    def _decode(self, rows: list[BatchRow], hosts: list[HostRow]) -> None:
        running = RunningBatch(self._loaded, self._kv)
        running.make_room(len(rows), max(row.cached for row in rows) + 1)
        for place, (row, host) in enumerate(zip(rows, hosts, strict=True)):
            self._kv.row_from_host(place, host)
            running.seat([row], [place])
        while any(row.ended is None for row in rows):
            running.decode()


class VectorShaping(RunningBatch):
    """A batch whose joiners are prefilled in the pass that decodes the running rows, padded to the joiners' length."""

    def shape_in(self, joiners: Several[BatchRow]) -> None:
        """One pass of [rows, longest joiner] tokens: running rows bring one token each, and padding (4.1)."""
        rows = [*self.rows, *joiners]
        running = len(self.rows)
        length = max(len(row.token_ids) for row in joiners)
        starts = [row.cached for row in self.rows] + [0] * len(joiners)
        fed = [[row.generated[-1]] for row in self.rows] + [list(row.token_ids) for row in joiners]
        self.make_room(len(rows), max(starts) + length)
        kv, device = self.kv, self.loaded.device
        tokens = torch.tensor([ids + [self.loaded.pad_id] * (length - len(ids)) for ids in fed], device=device)
        positions = torch.tensor(starts, device=device)[:, None] + torch.arange(length, device=device)
        lanes = torch.arange(len(rows) * kv.layout.heads, device=device).view(len(rows), -1, 1)
        slots = (lanes * kv.columns + positions[:, None]).view(-1)
        width = kv.write_decode(slots, starts, max(starts) + length)
        hidden = torch.arange(width, device=device) > positions[:, None, :, None]
        output = self.loaded.decoder(
            tokens,
            attention_mask=hidden.to(kv.layout.dtype).mul_(torch.finfo(kv.layout.dtype).min),
            position_ids=positions.clamp_(max=self.loaded.max_positions - 1),
            past_key_values=kv,
            use_cache=True,
            logits_to_keep=torch.tensor([[len(ids) - 1] for ids in fed], device=device),
        )
        self.seat(joiners, range(running, len(rows)))
        self._retire(rows, self._sample(output.logits[:, -1], rows))


class BatonBaseline:
    """BATON without decoupling: joiners stall the running rows for their prefill, as in Orca."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._kv = KvCache(loaded.layout, KV_BUDGET_BYTES)

    @torch.inference_mode()
    def serve(self, sequences: Several[Sequence], batch: int) -> EngineRun:
        """Serve everything."""
        served, running = EngineRun(), VectorShaping(self._loaded, self._kv)
        waiting = deque(BatchRow(sequence, 0, self._loaded.max_positions) for sequence in sequences)
        while waiting or running.rows:
            joiners = [waiting.popleft() for _ in range(min(batch - len(running.rows), len(waiting)))]
            if joiners:
                running.shape_in(joiners)
            else:
                running.decode()
            served.count(batch, len(running.rows), len(running.rows), work_waits=bool(waiting))
            served.answers |= {row.id: row.generated_ids for row in running.take_ended()}
            running.close_gaps()
            served.held(self._kv.nbytes)
        return served
