"""Predictors learn from nothing on a real model's answers: `python -m benchmarks.real_lengths --model DIR --answers F`.

The model answers the repository's own instructions and, with --data, as many of other data sets, greedily and in
bfloat16, through our engine. Answers are kept in a file and generated only once; a killed run goes on where it was.
Then requests arrive one after the other, and each predictor predicts them from the answers before them. It is fitted
after 20, 60, 200 and 600 answers and corrected online in between, as in the service, which predicts by a regression
before the first 60. An answer that reached the limit
counts as one of that length. Figures are means over several orders of arrival.
"""

import json
import random
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.real_lengths.curve_plot import plot
from benchmarks.real_lengths.learning_curve import Row, curve, learn, learners
from benchmarks.real_lengths.real_answers import load_answers


@click.command(help=__doc__)
@click.option("--model", required=True, help="Directory of a fetched model, for example .magnus/models/smollm2.")
@click.option(
    "--answers", "cache", type=click.Path(path_type=Path), required=True, help="File of answers, outside git."
)
@click.option(
    "--data", type=click.Path(exists=True, path_type=Path), help="Directory of data sets in requests/*.jsonl."
)
@click.option("--count", default=800, show_default=True, help="Answers; without --data there are 218 instructions.")
@click.option("--limit", default=256, show_default=True, help="Tokens of an answer at most.")
@click.option("--encoder", help="Directory of a sentence encoder, for example .magnus/models/minilm.")
@click.option("--orders", default=5, show_default=True, help="Random orders of arrival.")
@click.option("--seed", default=0, show_default=True, help="Which instructions, and the first order.")
@click.option("--cached-only", is_flag=True, help="Take the answers that the file has; generate none.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every figure here.")
@click.option("--plot", "plot_path", type=click.Path(path_type=Path), help="Write the picture here (SVG).")
def main(
    model: str,
    cache: Path,
    data: Path | None,
    count: int,
    limit: int,
    encoder: str | None,
    orders: int,
    seed: int,
    cached_only: bool,
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    """Generate, learn, print, write."""

    def report(line: str) -> None:
        click.echo(line, err=True)

    answers = load_answers(cache, model, data, count, limit, seed, report, cached_only)
    outcomes = [answer.outcome(limit, at=float(i)) for i, answer in enumerate(answers)]
    curves: dict[str, list[Row]] = {}
    cpu_ms: dict[str, float] = {}
    for name, make in learners(encoder).items():
        runs = []
        began = time.process_time()
        for order in range(orders):
            arrived = random.Random(seed + order).sample(outcomes, len(outcomes))
            runs.append((arrived, learn(make(), arrived)))
        cpu_ms[name] = round(1e3 * (time.process_time() - began) / (orders * len(outcomes)), 2)
        curves[name] = curve(runs)
    cut = sum(answer.cut for answer in answers) / len(answers)
    click.echo(f"{len(answers)} answers, {cut:.0%} of them cut off at {limit} tokens; {orders} orders of arrival\n")
    click.echo(_table(curves))
    if json_path:
        settings: dict[str, Any] = {
            "model": Path(model).name,
            "answers": len(answers),
            "limit": limit,
            "orders": orders,
        }
        settings |= {"data": data is not None, "encoder": Path(encoder).name if encoder else None, "seed": seed}
        figures = {"settings": settings, "share_cut": round(cut, 4), "curves": curves, "cpu_ms_a_request": cpu_ms}
        json_path.write_text(json.dumps(figures, indent=1) + "\n")
    if plot_path:
        plot(curves, plot_path)


def _table(curves: dict[str, list[Row]]) -> str:
    """A Markdown table: a line for each checkpoint and predictor."""
    lines = ["| after answers | until | predictor | RMSE | MAE | tau | coverage |", "|---|---|---|---|---|---|---|"]
    for checkpoint in zip(*curves.values(), strict=True):
        for name, row in zip(curves, checkpoint, strict=True):
            figures = f"{row['rmse']:.1f} | {row['mae']:.1f} | {row['tau']:.3f} | {row['coverage']:.1%}"
            lines.append(f"| {row['after']:.0f} | {row['until']:.0f} | {name} | {figures} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
