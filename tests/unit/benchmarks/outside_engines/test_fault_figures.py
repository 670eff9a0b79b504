"""The arithmetic of what a fault costs."""

from benchmarks.outside_engines.fault_figures import amounts
from benchmarks.outside_engines.open_loop import TimedAnswer


def test_tokens_computed_beyond_those_of_the_answers_were_computed_twice():
    answers = [TimedAnswer(0.0, 2.0, 200, tokens=60), TimedAnswer(0.0, 3.0, 200, tokens=40), TimedAnswer(0.0, 9.0, 502)]
    assert amounts(answers, computed=104) == {
        "requests": 3,
        "completed": 2,
        "statuses": {"200": 2, "502": 1},
        "tokens": 100,
        "computed_tokens": 104,
        "computed_twice": 0.04,  # 4 of 100
        "seconds": 9.0,
    }
