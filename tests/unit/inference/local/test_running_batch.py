"""Where rows are in the cache when others finish, join and leave."""

import pytest
import torch

from inference.local.batch_rows import BatchRow
from inference.local.kv.kv_cache import KvCache
from inference.local.running_batch import RunningBatch
from tests.unit.inference.tiny_models import POSITIONS


@pytest.fixture
def batch(endless):
    """Rows 0, 1 and 2 with limits of 2, 20 and 20 tokens, after their prefill."""
    batch = RunningBatch(endless.loaded, KvCache(endless.loaded.layout, 2**24))
    rows = [
        BatchRow(answered.sequence(str(n), limit), n, POSITIONS)
        for n, (answered, limit) in enumerate(zip(endless.pool, (2, 20, 20), strict=False))
    ]
    with torch.inference_mode():
        batch.prefill(rows, range(3))
        yield batch


def ids(batch):
    return [row.sequence.id for row in batch.rows]


def test_a_finished_row_keeps_its_index_and_gets_no_more_tokens(batch):
    batch.decode()
    batch.decode()
    assert ids(batch) == ["0", "1", "2"]
    assert [len(row.generated) for row in batch.rows] == [2, 3, 3]
    assert [(row.id, row.reason) for row in batch.take_finished()] == [("0", "limit")]
    assert batch.take_finished() == []


def test_compaction_moves_the_last_row_to_the_index_of_a_finished_one(batch, endless):
    batch.decode()
    batch.compact()
    assert ids(batch) == ["2", "1"]
    while batch.any_running():
        batch.decode()
    assert {row.id: row.generated_ids for row in batch.take_finished()} == {
        "0": endless.pool[0].up_to(2),
        "1": endless.pool[1].answer,
        "2": endless.pool[2].answer,
    }


def test_a_joiner_takes_the_index_of_a_finished_row(batch, endless):
    batch.decode()
    batch.prefill([BatchRow(endless.pool[3].sequence("joiner"), 3, POSITIONS)], [0])
    assert ids(batch) == ["joiner", "1", "2"]


def test_the_rows_that_were_running_survive_the_release_of_the_cache(batch):
    batch.decode()
    assert [row.sequence.id for row in batch.release_cache()] == ["1", "2"]
    assert (batch.rows, batch.kv.nbytes) == ([], 0)
