"""Keeps the keys and values of preempted rows in host memory if copying them is cheaper than a second prefill."""

from collections import OrderedDict
from dataclasses import dataclass
from time import perf_counter

from inference.local.kv.kv_cache import HostRow, KvCache

# Assumed cost of a copy to the host until the first copy was measured: 1 GB/s. With a slower guess the first preempted
# rows are prefilled again, with a faster one they are copied although a prefill might be cheaper. Not tuned.
SECONDS_PER_BYTE = 1e-9


@dataclass(frozen=True, slots=True)
class _OffloadedRow:
    token_ids: tuple[int, ...]
    row: HostRow
    nbytes: int


class OffloadedRows:
    """Rows in host memory by id, at most `capacity_bytes`; the oldest are discarded first."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.nbytes = 0
        self._rows: OrderedDict[str, _OffloadedRow] = OrderedDict()
        self._seconds_per_byte = SECONDS_PER_BYTE

    def offload(self, sequence_id: str, kv: KvCache, index: int, token_ids: tuple[int, ...], prefill_s: float) -> None:
        """Copies the keys and values of `token_ids`, which are the beginning of the cache's row `index`.

        Layers with windows keep what the next token attends to. Does nothing if two copies (out and back) of the row
        take `prefill_s` or longer, or if the row exceeds the capacity.
        """
        nbytes = kv.layout.row_bytes(len(token_ids))
        if 2 * nbytes * self._seconds_per_byte >= prefill_s or nbytes > self.capacity_bytes:
            return
        started = perf_counter()
        row = kv.row_to_host(index, len(token_ids))
        self._seconds_per_byte = (perf_counter() - started) / nbytes
        self.discard(sequence_id)
        held_bytes = sum(side.nbytes for layer in row for side in layer)
        self._rows[sequence_id] = _OffloadedRow(token_ids, row, held_bytes)
        self.nbytes += held_bytes
        while self.nbytes > self.capacity_bytes:
            self.discard(next(iter(self._rows)))

    def holds(self, sequence_id: str, token_ids: tuple[int, ...]) -> bool:
        """Returns whether exactly these tokens are held; a row that another engine resumed has more tokens by now."""
        held = self._rows.get(sequence_id)
        return held is not None and held.token_ids == token_ids

    def restore(self, sequence_id: str, kv: KvCache, index: int, start: int = 0) -> None:
        """Copies a row from its token `start` on to row `index` of the cache and discards it here."""
        held = self._rows[sequence_id]
        kv.row_from_host(index, len(held.token_ids), held.row, start)
        self.discard(sequence_id)

    def discard(self, sequence_id: str) -> None:
        """Frees the host memory of a row; does nothing for an unknown id."""
        held = self._rows.pop(sequence_id, None)
        self.nbytes -= held.nbytes if held else 0
