"""The logs of all our processes have one format; Postgres and the broker, if embedded, write their own."""

import json

from tests.e2e.whole_service import Up

OURS = ("web", "planner", "predictor", "chores", "beat", "trainer", "flower", "worker-1", "worker-2")


def test_every_line_of_every_process_of_ours_is_json(up: Up) -> None:
    lines = {name: (up.state_dir / "logs" / f"{name}.log").read_text().splitlines() for name in OURS}
    assert any(lines.values())
    for of_process in lines.values():
        for line in of_process:
            assert {"level", "timestamp", "event"} <= json.loads(line).keys()
