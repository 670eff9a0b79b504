"""Preempted rows in host memory: kept where copying is cheaper than a prefill, within a bound."""

from dataclasses import replace

import torch

from inference.accelerator import HostCopies
from inference.local.kv.attention_windows import Window
from inference.local.kv.kv_budget import KvLayout, LayerShape
from inference.local.kv.kv_cache import KvCache
from inference.local.kv.row_offload import OffloadedRows

LAYOUT = KvLayout((LayerShape(1, 2, 2),), torch.float32, torch.device("cpu"))
COPIES = HostCopies(LAYOUT.device)
HOURS, FIFTY = 1e4, tuple(range(50))


def cache():
    kv = KvCache(LAYOUT, 2**20)
    kv.reserve([150, 150])
    return kv


def test_a_row_is_offloaded_only_if_its_prefill_would_take_longer():
    offloaded = OffloadedRows(2**20, COPIES)
    offloaded.offload("cheap", cache(), 0, token_ids=FIFTY, prefill_s=0.0)
    offloaded.offload("dear", cache(), 0, token_ids=FIFTY, prefill_s=HOURS)
    assert not offloaded.holds("cheap", FIFTY)
    assert offloaded.holds("dear", FIFTY)
    assert not offloaded.holds("dear", (*FIFTY, 1))  # resumed elsewhere meanwhile, so what is offloaded is too old


def test_layers_with_windows_keep_what_the_next_token_attends_to():
    windows = {"all": None, "window": Window(8), "chunks": Window(10, in_chunks=True)}
    layout = replace(LAYOUT, shapes=LAYOUT.shapes * 3, kinds=tuple(windows), windows=windows)
    kv, offloaded = KvCache(layout, 2**20), OffloadedRows(2**20, COPIES)
    kv.reserve([60, 60])
    content = torch.randn(1, 1, 50, 2)
    kv.prepare_prefill([0], [50])
    for layer in range(3):
        kv.update(content, content, layer)
    offloaded.offload("a", kv, 0, token_ids=FIFTY, prefill_s=HOURS)
    assert offloaded.nbytes == (50 + 7 + 0) * LAYOUT.token_bytes  # position 50 begins a chunk
    offloaded.restore("a", kv, 1)
    kept = [kv.row_copy(1, 50)[layer][0][0] for layer in range(3)]
    assert [len(tokens) for tokens in kept] == [50, 7, 0]
    assert all(torch.equal(tokens, content[0, 0, 50 - len(tokens) :]) for tokens in kept)


def test_the_oldest_rows_are_discarded_at_the_bound():
    kv, offloaded = cache(), OffloadedRows(100 * LAYOUT.token_bytes, COPIES)
    for name in ("first", "second", "third"):
        offloaded.offload(name, kv, 0, token_ids=FIFTY[:40], prefill_s=HOURS)
    assert [offloaded.holds(name, FIFTY[:40]) for name in ("first", "second", "third")] == [False, True, True]
    assert offloaded.nbytes == 80 * LAYOUT.token_bytes
    offloaded.restore("second", kv, 1)
    offloaded.discard("third")
    assert offloaded.nbytes == 0
    offloaded.offload("too long", kv, 0, token_ids=FIFTY * 3, prefill_s=HOURS)
    assert offloaded.nbytes == 0
