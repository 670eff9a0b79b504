"""The example of docs/adding-an-engine.md is an engine like any other, once the guide was followed."""

from pathlib import Path

import pytest

from tests.guide_gates import REPOSITORY, followed_guide, pass_the_gates

# The tests of greedy answers, static batches and preemption, to save CPU time. `make test` runs the whole suite on our
# own engine.
CHOSEN_TESTS = "greedy or order_given or preempted_row"


@pytest.mark.long
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
