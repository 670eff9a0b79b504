"""Preempted rows in host memory: kept where copying is cheaper than a prefill, within a bound."""

import torch

from inference.local.kv_budget import KvLayout
from inference.local.kv_cache import KvCache
from inference.local.row_parking import Parking

LAYOUT = KvLayout(layers=1, heads=1, key_dim=2, value_dim=2, dtype=torch.float32, device=torch.device("cpu"))
HOURS, FIFTY = 1e4, tuple(range(50))


def cache():
    kv = KvCache(LAYOUT, 2**20)
    kv.reserve([150, 150])
    return kv


def test_a_row_is_parked_only_if_its_prefill_would_take_longer():
    parking = Parking(2**20)
    parking.park("cheap", cache(), 0, token_ids=FIFTY, prefill_s=0.0)
    parking.park("dear", cache(), 0, token_ids=FIFTY, prefill_s=HOURS)
    assert not parking.holds("cheap", FIFTY)
    assert parking.holds("dear", FIFTY)
    assert not parking.holds("dear", (*FIFTY, 1))  # resumed elsewhere meanwhile, so what is parked is too old


def test_the_oldest_rows_are_discarded_at_the_bound():
    kv, parking = cache(), Parking(100 * LAYOUT.token_bytes)
    for name in ("first", "second", "third"):
        parking.park(name, kv, 0, token_ids=FIFTY[:40], prefill_s=HOURS)
    assert [parking.holds(name, FIFTY[:40]) for name in ("first", "second", "third")] == [False, True, True]
    assert parking.nbytes == 80 * LAYOUT.token_bytes
    parking.restore("second", kv, 1)
    parking.discard("third")
    assert parking.nbytes == 0
    parking.park("too long", kv, 0, token_ids=FIFTY * 3, prefill_s=HOURS)
    assert parking.nbytes == 0
