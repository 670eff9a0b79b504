"""The example of docs/adding-an-engine.md is an engine like any other, once the guide was followed."""

from pathlib import Path

import pytest

from tests.guide_gates import REPOSITORY, followed_guide, pass_the_gates

# One test each of greedy answers, stop strings, seeds, static batches, removal and preemption. The whole suite of an
# engine takes more than twice the CPU time.
CHOSEN_TESTS = "greedy or stop_string or same_text_after or order_given or removed_row or preempted_row"


@pytest.mark.timeout(300)
def test_the_guides_engine_passes_the_gates(tmp_path: Path) -> None:
    changed = followed_guide(REPOSITORY / "docs/adding-an-engine.md", tmp_path)
    assert changed == [
        "inference/local/single_row_engine.py",
        "tests/engines/tested_engines.py",
        "tasks/serving/local_worker.py",
    ]
    pass_the_gates(
        tmp_path, changed, "tests/engines/test_every_engine.py", "--engines", "single-row", "-k", CHOSEN_TESTS
    )
