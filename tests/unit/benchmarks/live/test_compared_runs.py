"""The table of recorded runs."""

from typing import Any

from benchmarks.live.compared_runs import markdown
from benchmarks.live.measured_run import length_correlation, to_last_arrival


def run(policy: str, requests_per_s: float, mean: float, repeat: int = 0) -> dict[str, Any]:
    return {
        "policy": policy,
        "paced": "v100",
        "repeat": repeat,
        "requests_per_s": requests_per_s,
        "requests_per_s_to_last_arrival": 4.0,
        "response_s": {"mean": mean, "p99": 90.0},
        "valid_tokens_per_s": 300.0,
        "valid_token_share": 0.4,
        "mean_batch_size": 6.9,
        "simulator": {"requests_per_s": 5.0, "mean": 36.0},
        "learned_before": {"serving_time_estimators": 0},
        "length_correlation": {"all": 0.83},
        "worker_cpu_share": 0.02,
        "threads": {},
    }


def test_ratios_are_those_of_medians_to_the_first_policy() -> None:
    runs = [run("vs", 4.0, 40.0), run("vs", 5.0, 38.0, 1), run("magnus", 9.0, 16.0), run("magnus", 11.0, 14.0, 1)]
    cells = [cell.strip() for cell in markdown(runs)[3].split("|")[1:-1]]
    assert cells[:3] == ["`magnus`", "10.00 (9.00–11.00)", "2.22"]  # 10 / 4.5
    assert cells[5] == "0.38"  # 15 / 39
    assert cells[11:13] == ["5.00", "36.0"]
    assert "1.94 to 2.38" in cells[13]


def test_what_was_learned_and_how_lengths_correlate_stand_below_the_table() -> None:
    facts = "\n".join(markdown([run("vs", 4.0, 40.0)]))
    assert "vs 0" in facts
    assert "0.83" in facts


def response(arrived_at: float, completed_at: float | None, prompt: int, answer: int) -> dict[str, Any]:
    return {
        "completed_at": completed_at,
        "usage": {"input_tokens": prompt, "output_tokens": answer},
        "magnus": {"arrived_at": arrived_at, "application": "repeat"},
    }


def test_answers_after_the_last_arrival_do_not_count_until_then() -> None:
    responses = [response(0.0, 5.0, 10, 10), response(4.0, 12.0, 20, 20), response(10.0, 13.0, 30, 30)]
    assert to_last_arrival(responses) == 0.1  # one answer in ten seconds


def test_the_correlation_is_that_of_all_requests_and_of_each_application() -> None:
    responses = [response(0.0, 1.0, n, 2 * n) for n in range(1, 20)]
    assert length_correlation(responses) == {"all": 1.0, "repeat": 1.0}
    assert length_correlation(responses[:3]) == {}
