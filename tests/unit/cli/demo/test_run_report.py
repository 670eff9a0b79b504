"""The demo's figures, with the arithmetic written beside them."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from cli.demo.run_report import print_report, summary

STATS = {
    "policy": "magnus",
    "batches": 2,
    "mean_batch_size": 1.5,
    "valid_tokens": 30,
    "invalid_tokens": 10,
    "worker_idle_share": 0.25,
}


def response(
    application: str, arrived_at: float, ended_at: float | None, predicted: int | None, actual: int, **more: Any
) -> dict[str, Any]:
    return {
        "status": "completed",
        "completed_at": ended_at,
        "usage": {"output_tokens": actual},
        "magnus": {"application": application, "arrived_at": arrived_at, "predicted_tokens": predicted},
    } | more


def three() -> list[dict[str, Any]]:
    return [
        response("repeat", 100.0, 101.0, 8, 10),
        response("repeat", 101.0, 104.0, 14, 10),
        response("classify", 102.0, 110.0, 2, 4),
    ]


def test_rates_are_over_the_time_from_the_first_arrival_to_the_last_answer() -> None:
    figures = summary(three(), STATS, requests=3)
    assert figures["seconds"] == 10.0  # 110 - 100
    assert figures["requests_per_s"] == 0.3
    assert figures["valid_tokens_per_s"] == 2.4  # (10 + 10 + 4) / 10
    assert figures["total_tokens_per_s"] == 4.0  # (30 + 10) / 10
    assert figures["response_s"] == {"mean": 4.0, "p50": 3.0, "p95": 7.5, "p99": 7.9, "max": 8.0}  # of 1, 3, 8


def test_an_application_has_its_own_means_and_error() -> None:
    row = summary(three(), STATS, requests=3)["applications"]["repeat"]
    assert (row["requests"], row["completed"]) == (2, 2)
    assert (row["mean_predicted"], row["mean_actual"]) == (11.0, 10.0)
    assert row["rmse"] == pytest.approx(3.1623)  # sqrt((2² + 4²) / 2)


def test_what_was_not_completed_counts_as_failed() -> None:
    failed = response("repeat", 102.0, 103.0, 5, 0, status="failed", usage=None)
    figures = summary([*three(), failed], STATS, requests=5)  # one of five was never stored
    assert (figures["completed"], figures["failed"]) == (3, 2)
    assert figures["applications"]["repeat"] | {"response_s": None} == {
        "requests": 3,
        "completed": 2,
        "mean_predicted": 11.0,
        "mean_actual": 10.0,
        "rmse": 3.1623,
        "response_s": None,
    }


def test_a_run_without_any_answer_has_no_rates() -> None:
    figures = summary([], {**STATS, "batches": 0, "mean_batch_size": None, "worker_idle_share": None}, requests=2)
    assert (figures["completed"], figures["failed"], figures["requests_per_s"]) == (0, 2, None)
    console = Console(file=StringIO(), width=120)
    print_report(console, figures)
