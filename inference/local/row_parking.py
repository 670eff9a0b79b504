"""Where preempted rows wait: their keys and values in host memory, if copying is cheaper than a second prefill."""

from collections import OrderedDict
from dataclasses import dataclass
from time import perf_counter

from inference.local.kv_cache import HostRow, KvCache

SECONDS_PER_BYTE = 1e-9  # of a copy, until one was measured


@dataclass(frozen=True, slots=True)
class _Parked:
    token_ids: tuple[int, ...]
    row: HostRow
    nbytes: int


class Parking:
    """Rows in host memory by id, at most `capacity_bytes`; the oldest give way."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.nbytes = 0
        self._rows: OrderedDict[str, _Parked] = OrderedDict()
        self._seconds_per_byte = SECONDS_PER_BYTE

    def park(self, sequence_id: str, kv: KvCache, place: int, token_ids: tuple[int, ...], prefill_s: float) -> None:
        """Keep what a row's cache holds of these tokens, unless their prefill takes less time than two copies."""
        nbytes = len(token_ids) * kv.layout.token_bytes
        if 2 * nbytes * self._seconds_per_byte >= prefill_s or nbytes > self.capacity_bytes:
            return
        started = perf_counter()
        row = kv.row_to_host(place, len(token_ids))
        self._seconds_per_byte = (perf_counter() - started) / nbytes
        self.drop(sequence_id)
        self._rows[sequence_id] = _Parked(token_ids, row, nbytes)
        self.nbytes += nbytes
        while self.nbytes > self.capacity_bytes:
            self.drop(next(iter(self._rows)))

    def holds(self, sequence_id: str, token_ids: tuple[int, ...]) -> bool:
        """Whether exactly these tokens are parked; a sequence that went on elsewhere has others by now."""
        parked = self._rows.get(sequence_id)
        return parked is not None and parked.token_ids == token_ids

    def unpark(self, sequence_id: str, kv: KvCache, place: int) -> None:
        """Copy a row back into the cache and forget it."""
        kv.row_from_host(place, self._rows[sequence_id].row)
        self.drop(sequence_id)

    def drop(self, sequence_id: str) -> None:
        """Forget a row, if it is here."""
        parked = self._rows.pop(sequence_id, None)
        self.nbytes -= parked.nbytes if parked else 0
