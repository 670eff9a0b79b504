"""The figures of a run of requests, as the demo's JSON and tables, from the responses and the service's statistics."""

import math
from collections import defaultdict
from collections.abc import Sequence, Set
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cli.api_client import Json, output_text
from cli.output import table

# characters of a request shown above its answer: leaves space for the figures in a terminal's line
TITLE_CHARACTERS = 70
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}  # the quantiles of response times in the report
WHOLE = frozenset({"completed"})  # the status of an answer that ended by itself
# the statuses of answers that ended by themselves or at their limit
WHOLE_OR_CUT_OFF = frozenset({"completed", "incomplete"})


def summary(responses: Sequence[Json], stats: Json, requests: int, answered: Set[str] = WHOLE) -> Json:
    """Returns the run's figures. A request counts as completed if its status is one of `answered`."""
    completed = [response for response in responses if response["status"] in answered]
    ended = [response for response in responses if response["completed_at"] is not None]
    first = min((response["magnus"]["arrived_at"] for response in responses), default=0.0)
    last = max((response["completed_at"] for response in ended), default=first)
    seconds = last - first
    valid = sum(response["usage"]["output_tokens"] for response in responses if response["usage"])
    generated = stats["valid_tokens"] + stats["invalid_tokens"]
    by_application = defaultdict(list)
    for response in responses:
        by_application[response["magnus"]["application"]].append(response)
    return {
        "policy": stats["policy"],
        "requests": requests,
        "completed": len(completed),
        "failed": requests - len(completed),
        "seconds": _rounded(seconds),
        "requests_per_s": _rounded(len(completed) / seconds) if seconds else None,
        "valid_tokens_per_s": _rounded(valid / seconds) if seconds else None,
        "total_tokens_per_s": _rounded(generated / seconds) if seconds else None,
        "valid_token_share": _rounded(stats["valid_tokens"] / generated) if generated else None,
        "batches": stats["batches"],
        "mean_batch_size": _rounded(stats["mean_batch_size"]),
        "worker_idle_share": _rounded(stats["worker_idle_share"]),
        "response_s": _response_s(completed),
        "applications": {name: _application(group, answered) for name, group in sorted(by_application.items())},
    }


def _application(responses: Sequence[Json], answered: Set[str]) -> Json:
    completed = [response for response in responses if response["status"] in answered]
    predicted = [response["magnus"]["predicted_tokens"] for response in completed]
    actual = [response["usage"]["output_tokens"] for response in completed]
    pairs = [(p, a) for p, a in zip(predicted, actual, strict=True) if p is not None]
    return {
        "requests": len(responses),
        "completed": len(completed),
        "mean_predicted": _mean([p for p, _ in pairs]),
        "mean_actual": _mean(actual),
        "rmse": _rounded(math.sqrt(sum((p - a) ** 2 for p, a in pairs) / len(pairs))) if pairs else None,
        "response_s": _response_s(completed),
    }


def _response_s(completed: Sequence[Json]) -> Json:
    times = [response["completed_at"] - response["magnus"]["arrived_at"] for response in completed]
    quantiles = np.quantile(times, list(QUANTILES.values())).tolist() if times else [None] * len(QUANTILES)
    return {"mean": _mean(times)} | {name: _rounded(s) for name, s in zip(QUANTILES, quantiles, strict=True)}


def print_answer(console: Console, input: str, response: Json) -> None:
    """Prints one answer below its request and its predicted and actual length."""
    predicted, tokens = response["magnus"]["predicted_tokens"], response["usage"]["output_tokens"]
    seconds = response["completed_at"] - response["magnus"]["arrived_at"]
    title = f"{response['magnus']['application']}: {_first_line(input)}"
    ending = " (cut off)" if response["status"] == "incomplete" else ""
    console.print(f"[bold]{escape(title)}[/bold]  {predicted} tokens predicted, {tokens} came, {seconds:.1f} s")
    console.print(f"  {escape(' '.join(output_text(response).split()))}{ending}", soft_wrap=True, highlight=False)


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= TITLE_CHARACTERS else line[: TITLE_CHARACTERS - 1] + "…"


def print_report(console: Console, figures: Json) -> None:
    """Prints two tables: one row for each application, and the whole run."""
    console.print(Group(_applications(figures), _whole(figures)))


def _applications(figures: Json) -> Table:
    columns = ("application", "requests", "completed", "predicted", "actual", "RMSE", "P50", "P95", "P99", "max")
    made = Table(title="Applications", title_justify="left")
    for name in columns:
        made.add_column(name, justify="left" if name == "application" else "right")
    for name, row in figures["applications"].items():
        tokens = (shown(row[key], ".1f") for key in ("mean_predicted", "mean_actual", "rmse"))
        times = (shown(row["response_s"][key], ".2f", " s") for key in QUANTILES)
        made.add_row(name, str(row["requests"]), str(row["completed"]), *tokens, *times)
    return made


def _whole(figures: Json) -> Table:
    times = figures["response_s"]
    spread = ", ".join(f"{name} {shown(times[name], '.2f')}" for name in QUANTILES)
    rows = (
        ("policy", figures["policy"]),
        ("completed", f"{figures['completed']} of {figures['requests']} in {shown(figures['seconds'], '.1f')} s"),
        ("response time, s", f"mean {shown(times['mean'], '.2f')}, {spread}"),
        ("requests a second", shown(figures["requests_per_s"], ".1f")),
        ("valid tokens a second", shown(figures["valid_tokens_per_s"], ".0f")),
        ("all tokens a second", shown(figures["total_tokens_per_s"], ".0f")),
        ("batches", f"{figures['batches']}, mean size {shown(figures['mean_batch_size'], '.1f')}"),
        ("idle share of the workers", shown(figures["worker_idle_share"], ".0%")),
    )
    return table(("fact", "figure"), rows, title="Service", title_justify="left", show_header=False)


def _mean(values: Sequence[float]) -> float | None:
    return _rounded(sum(values) / len(values)) if values else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def shown(value: Any, format: str, unit: str = "") -> str:
    """Returns a figure in this format, or a dash if it is not known."""
    return "–" if value is None else f"{value:{format}}{unit}"


class RunProgress(Progress):
    """Two bars and the service's figures, redrawn in a terminal; a pipe or a log file gets only the last state."""

    def __init__(self, console: Console, requests: int) -> None:
        columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        super().__init__(*columns, TextColumn("{task.fields[note]}"), console=console)
        self._sent = self.add_task("sent", total=requests, note="")
        self._answered = self.add_task("answered", total=requests, note="")

    def show(self, sent: int, stats: Json) -> None:
        """Redraws the bars with the number of requests sent and the service's figures since the start."""
        answered = max(0, sent - stats["queued"] - stats["in_progress"])
        size = stats["mean_batch_size"]
        note = f"{stats['batches']} batches" + (f" of {size:.1f}" if size else "")
        note += f", {stats['queued']} waiting, {stats['in_progress']} in batches, {stats['workers']} workers"
        self.update(self._sent, completed=sent)
        self.update(self._answered, completed=answered, note=note)
