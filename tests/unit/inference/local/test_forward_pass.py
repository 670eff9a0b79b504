"""The cursor of a decoding step."""

from inference.local.forward_pass import Cursor
from inference.local.kv.kv_cache import KvCache


def test_only_running_rows_advance(llama):
    kv = KvCache(llama.loaded.layout, 2**24)
    kv.reserve([64, 64])
    cursor = Cursor.from_host(kv, tokens=[5, 6], positions=[3, 9], running=[True, False])
    (heads,), columns = kv.layout.head_counts, kv.arrangement.columns
    assert cursor.slots[heads].tolist() == [head * columns + 3 for head in range(heads)] + [
        (heads + head) * columns + 9 for head in range(heads)
    ]
    before = cursor.slots[heads].clone()
    cursor.advance()
    assert cursor.positions.tolist() == [[4], [9]]
    assert (cursor.slots[heads] - before).tolist() == [1] * heads + [0] * heads


def test_a_row_attends_to_its_own_tokens_only(llama):
    kv = KvCache(llama.loaded.layout, 2**24)
    kv.reserve([64, 64])
    cursor = Cursor.from_host(kv, tokens=[5, 6], positions=[3, 9], running=[True, True])
    assert [(row == 0).sum().item() for row in cursor.mask] == [3, 9]
