"""The engine alone, as the overhead of a service is measured against it."""

import pytest

from benchmarks.service_overhead import engine_run, figures, outside_by_process
from tests.unit.inference.tiny_models import AMPLE, known


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_the_engine_alone_answers_everything_in_scarce_and_in_ample_memory(rows):
    bundled = known("bundled")
    one_row = (max(len(answered.prompt_ids) for answered in bundled.pool) + 64) * bundled.loaded.delta_bytes
    waiting = [answered.sequence(str(number)) for number, answered in enumerate(bundled.pool)]
    run = engine_run(bundled.loaded, min(rows * one_row, AMPLE), waiting)
    assert run["tokens"] == sum(len(answered.answer) for answered in bundled.pool)
    assert 1 <= run["mean_rows"] <= rows


def test_the_table_counts_everything_but_the_worker_as_outside():
    alone = figures(2.0, 400, 30.0, {"engine": 1.9})
    service = figures(2.5, 400, 28.0, {"worker-1": 1.7, "planner": 0.05, "beat": 0.03, "flower": 0.001})
    shown = outside_by_process({"engine": alone, "service": service, "ratio": 0.8})
    assert shown == "0.08 (worker-1 1.700, planner 0.050, beat 0.030)"
