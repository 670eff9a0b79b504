"""What `magnus batch` shows of a batch: its predicted end, and what a dry run says."""

import time
from pathlib import Path

from click.testing import CliRunner

from cli.api_client import Json
from cli.commands.client.batch_commands import LinesOfProgress, change, predicted_end, run


def state(done: int = 0, **fields: object) -> Json:
    counts = {"total": 10, "completed": done, "failed": 0}
    times = {"in_progress_at": 1000, "expires_at": 5000}
    return {"status": "in_progress", "request_counts": counts, "magnus": {"paused_at": None}} | times | fields


def test_the_predicted_end_is_the_services_or_follows_the_pace_of_the_lines() -> None:
    at = time.strftime("%H:%M:%S", time.localtime(1400))  # 5 of 10 lines took 200 s, so that 5 more take 200 s
    assert predicted_end(state(5), 1200.0) == f"{time.strftime('%a', time.localtime(1400))} {at}"
    assert at in predicted_end(state(0, magnus={"paused_at": None, "eta_s": 200.0}), 1200.0)
    assert "too late" in predicted_end(state(1), 2000.0)  # 9 lines at 1000 s each
    assert predicted_end(state(0), 1200.0) == ""
    assert predicted_end(state(5, magnus={"paused_at": 1100}), 1200.0) == ""
    assert predicted_end(state(10, status="completed"), 1200.0) == ""


def test_where_no_terminal_shows_a_bar_each_change_of_status_and_each_tenth_of_the_lines_is_a_line() -> None:
    said: list[str] = []
    show = LinesOfProgress(said.append)
    large = {"total": 2000, "completed": 0, "failed": 0}
    for done in (0, 100, 150, 200, 210, 399):
        show(state(request_counts=large | {"completed": done}, magnus={"paused_at": None, "eta_s": None}))
    show(state(request_counts=large | {"completed": 399, "failed": 1}, magnus={"paused_at": 1100}))
    show(state(request_counts=large | {"completed": 1999, "failed": 1}, status="completed"))
    assert [one.split(";")[0] for one in said] == [
        "in_progress 0/2,000",
        "in_progress 200/2,000",
        "paused 400/2,000",
        "completed 2,000/2,000",
    ]
    assert "ends about" in said[1]
    assert "1 failed" in said[2]


def test_a_change_of_nothing_names_the_options() -> None:
    said = CliRunner().invoke(change, ["batch_1", "--url", "http://127.0.0.1:1", "--api-key", "key"])
    assert said.exit_code == 2
    assert "give --window, --tier or --budget" in said.output


def test_a_run_without_a_file_for_the_answers_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    lines = tmp_path / "in.jsonl"
    lines.write_text("{}")
    said = CliRunner().invoke(run, [str(lines), "--url", "http://127.0.0.1:1", "--api-key", "key"])
    assert said.exit_code == 2
    assert "OUTPUT" in said.output
