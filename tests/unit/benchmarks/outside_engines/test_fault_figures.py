"""The arithmetic of what a fault costs."""

from typing import Any

from benchmarks.outside_engines.fault_figures import amounts


def test_tokens_computed_beyond_those_of_the_answers_were_computed_twice():
    answers: list[dict[str, Any]] = [
        {"status": "completed", "usage": {"output_tokens": 60}},
        {"status": "incomplete", "usage": {"output_tokens": 40}},
        {"status": "failed", "usage": None},
    ]
    assert amounts(answers, computed=104) == {
        "requests": 3,
        "completed": 2,
        "statuses": {"completed": 1, "incomplete": 1, "failed": 1},
        "tokens": 100,
        "computed_tokens": 104,
        "computed_twice": 0.04,  # 4 of 100
    }
