"""The verdict: one word, and the limit that binds, from figures alone."""

from dataclasses import replace

import pytest

from webapp.dashboard.overview_figures import ServiceFigures, verdict_on

QUIET = ServiceFigures(
    queued=0,
    in_flight=0,
    unpredicted=0,
    oldest_s=None,
    wait_s=0.0,
    workers=2,
    paused=False,
    planner=True,
    planner_failure=None,
    database_problem=None,
    broker_error=None,
    unserved=(),
    predictor=True,
    memory_share=0.2,
    ended_lately=100,
    failed_lately=0,
    last_ended_s=1.0,
)
BUSY = replace(QUIET, queued=50, in_flight=20, oldest_s=3.0, wait_s=4.0)


@pytest.mark.parametrize(
    ("figures", "word", "limit"),
    [
        (QUIET, "keeping up", None),
        (BUSY, "keeping up", None),
        (replace(BUSY, wait_s=90.0), "behind", "compute"),
        (replace(BUSY, oldest_s=90.0, wait_s=None), "behind", "compute"),
        (replace(BUSY, wait_s=90.0, memory_share=0.95), "behind", "memory"),
        (replace(BUSY, wait_s=90.0, oldest_s=9.0, unpredicted=40), "behind", "predictor"),
        (replace(BUSY, wait_s=90.0, predictor=False), "behind", "predictor"),
        (replace(BUSY, oldest_s=150.0, last_ended_s=130.0), "stuck", "compute"),
        (replace(BUSY, oldest_s=150.0, last_ended_s=1.0), "behind", "compute"),
        (replace(BUSY, workers=0), "stuck", "no worker"),
        (replace(BUSY, paused=True), "stuck", "planner"),
        (replace(BUSY, planner=False), "stuck", "planner"),
        (replace(QUIET, workers=0), "stuck", "no worker"),
        (replace(BUSY, broker_error="OOM command not allowed"), "stuck", "broker"),
        (replace(BUSY, planner=False, planner_failure="permission denied", workers=0), "stuck", "planner"),
        (replace(BUSY, planner_failure="permission denied"), "keeping up", None),  # of a stand-by
        (replace(BUSY, database_problem="the database takes no writes", workers=0), "stuck", "database"),
        (replace(BUSY, broker_error="OOM command not allowed", workers=0), "stuck", "broker"),
        (replace(BUSY, unserved=("other",)), "stuck", "no worker"),
        (replace(QUIET, predictor=False), "keeping up", "predictor"),
        (replace(BUSY, failed_lately=6), "failing", "compute"),
        (replace(BUSY, failed_lately=2, ended_lately=2), "keeping up", None),  # two bad requests
        (replace(BUSY, failed_lately=4), "keeping up", None),  # 4 %
    ],
)
def test_the_worst_that_holds_is_said(figures: ServiceFigures, word: str, limit: str | None) -> None:
    verdict = verdict_on(figures)
    assert (verdict.word, verdict.limit) == (word, limit)
    assert verdict.sentence.endswith(".")


def test_why_the_planner_plans_nothing_is_said() -> None:
    silent = replace(BUSY, planner=False)
    assert verdict_on(silent).sentence == "Requests wait: no planner works."
    refused = replace(silent, planner_failure="permission denied")
    assert verdict_on(refused).sentence == "Requests wait: the planner's steps fail: permission denied."


def test_a_service_that_has_just_got_its_first_requests_is_not_stuck() -> None:
    assert verdict_on(replace(BUSY, last_ended_s=None, ended_lately=0)).word == "keeping up"
