"""Keeps the keys and values of preempted rows in host memory if copying them is cheaper than a second prefill."""

from collections import OrderedDict
from dataclasses import dataclass
from itertools import chain

from inference.accelerator import HostCopies, HostCopy
from inference.local.kv.kv_cache import KvCache

# Assumed cost of a copy to the host until the first copy was measured: 1 GB/s. With a slower guess the first preempted
# rows are prefilled again, with a faster one they are copied although a prefill might be cheaper. Not tuned.
SECONDS_PER_BYTE = 1e-9


@dataclass(frozen=True, slots=True)
class _OffloadedRow:
    token_ids: tuple[int, ...]
    copy: HostCopy


class OffloadedRows:
    """Rows in host memory by id, at most `capacity_bytes`; the oldest are discarded first."""

    def __init__(self, capacity_bytes: int, copies: HostCopies) -> None:
        self.capacity_bytes, self._copies = capacity_bytes, copies
        self._latest: HostCopy | None = None  # the newest copy, until its seconds are known
        self.nbytes = 0
        self._rows: OrderedDict[str, _OffloadedRow] = OrderedDict()
        self._seconds_per_byte = SECONDS_PER_BYTE

    def offload(self, sequence_id: str, kv: KvCache, index: int, token_ids: tuple[int, ...], prefill_s: float) -> None:
        """Copies the keys and values of `token_ids`, which are the beginning of the cache's row `index`.

        Layers with windows keep what the next token attends to. Does nothing if two copies (out and back) of the row
        take `prefill_s` or longer, or if the row exceeds the capacity.
        """
        if self._latest is not None and (seconds := self._latest.seconds) is not None:
            self._seconds_per_byte, self._latest = seconds / max(1, self._latest.nbytes), None
        nbytes = kv.layout.row_bytes(len(token_ids))
        if 2 * nbytes * self._seconds_per_byte >= prefill_s or nbytes > self.capacity_bytes:
            return
        copy = self._latest = self._copies.copy([*chain.from_iterable(kv.row_copy(index, len(token_ids)))])
        self.discard(sequence_id)
        self._rows[sequence_id] = _OffloadedRow(token_ids, copy)
        self.nbytes += copy.nbytes
        while self.nbytes > self.capacity_bytes:
            self.discard(next(iter(self._rows)))

    def holds(self, sequence_id: str, token_ids: tuple[int, ...]) -> bool:
        """Returns whether exactly these tokens are held; a row that another engine resumed has more tokens by now."""
        held = self._rows.get(sequence_id)
        return held is not None and held.token_ids == token_ids

    def restore(self, sequence_id: str, kv: KvCache, index: int, start: int = 0) -> None:
        """Copies a row from its token `start` on to row `index` of the cache and discards it here."""
        held = self._rows[sequence_id]
        sides = held.copy.tensors()
        kv.write_row(index, len(held.token_ids), [*zip(sides[::2], sides[1::2], strict=True)], start)
        self.discard(sequence_id)

    def discard(self, sequence_id: str) -> None:
        """Frees the host memory of a row; does nothing for an unknown id."""
        held = self._rows.pop(sequence_id, None)
        self.nbytes -= held.copy.nbytes if held else 0
