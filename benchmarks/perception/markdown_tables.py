"""The benchmark's figures as Markdown tables, in the columns of the paper's Tables 2 and 3."""

from collections.abc import Mapping
from typing import Any


def word_table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Table 2: errors in words of the prompts that got a number, and the share of those that got none."""
    heads = ("words", "statements", "error", "median error", "Acc-50", "Acc-100", "failures")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, row in rows.items():
        shown = "0 | – | – | – | –"
        if "n" in row:
            errors = f"{row['n']:.0f} | {row['mae']:.0f} | {row['median_error']:.0f}"
            shown = f"{errors} | {row['acc_50']:.0%} | {row['acc_100']:.0%}"
        lines.append(f"| {name} | {shown} | {row['failures']:.0%} |")
    return "\n".join(lines)


def predictor_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Table 3: errors in tokens of all test prompts, statements that failed, and milliseconds."""
    heads = ("tokens", "error", "Acc-50", "Acc-100", "tau", "failures", "ms", "CPU ms")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, row in rows.items():
        scores, stated = row["scores"], row.get("stated")
        shown = f"{scores['mae']:.1f} | {scores['acc_50']:.1%} | {scores['acc_100']:.1%} | {scores['tau']:.3f}"
        failures = f"{stated['failures']:.1%}" if stated else ""
        times = [f"{row[key]:.3g}" for key in ("ms_a_prediction", "cpu_ms_a_prediction")]
        lines.append(f"| {name} | {shown} | {failures} | {' | '.join(times)} |")
    return "\n".join(lines)
