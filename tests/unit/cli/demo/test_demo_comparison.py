"""What a comparison of policies prints."""

from io import StringIO
from typing import Any

from rich.console import Console

from cli.demo.demo_comparison import print_comparison

TERMS = {"kind": "toy requests", "requests": 1500, "rate": 180.0, "examples": 1490, "options": "--kv-budget 40MiB"}


def figures(requests_per_s: float | None, mean: float | None) -> dict[str, Any]:
    return {
        "requests_per_s": requests_per_s,
        "valid_tokens_per_s": 1000.0,
        "valid_token_share": 0.4,
        "mean_batch_size": 6.0,
        "response_s": {"mean": mean, "p99": mean},
    }


def printed(**policies: dict[str, Any]) -> list[str]:
    console = Console(file=StringIO(), width=140)
    print_comparison(console, {"terms": TERMS, "policies": policies})
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def test_each_policy_has_its_throughput_over_the_first_ones_and_a_bar_of_that_length() -> None:
    lines = printed(vs=figures(50.0, 8.0), fusion=figures(100.0, 2.0))
    vs, fusion = (next(line for line in lines if f" {name} " in line[:12]) for name in ("vs", "fusion"))
    assert ("1.00" in vs, "2.00" in fusion) == (True, True)
    assert (vs.count("█"), fusion.count("█")) == (16, 32)


def test_the_terms_of_the_comparison_are_stated() -> None:
    text = " ".join(printed(vs=figures(50.0, 8.0)))
    for term in ("1500 toy requests", "180 a second", "--kv-budget 40MiB", "1490 other requests"):
        assert term in text


def test_a_policy_that_answered_nothing_has_no_figures_and_no_bar() -> None:
    lines = printed(vs=figures(None, None))
    assert not any("█" in line for line in lines)
