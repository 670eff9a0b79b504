"""Magnus, Table I and Fig. 2: do answers grow with inputs? `python -m benchmarks.paper.length_correlation --data DIR`.

Prints Pearson's coefficient of input and answer length for each task file, and draws both. The paper prints more than
0.8 for most of its six applications and three models, and its length prediction relies on this.
"""

from collections import defaultdict
from pathlib import Path

import click
import numpy as np

from benchmarks.harness import Results, json_option, print_table
from benchmarks.inputs.request_sources import TokenCounter, read_answered, tokenizer_option
from benchmarks.pictures import panels

POINTS = 400  # the points of a task in the picture; more points would hide each other


@click.command(help=__doc__)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@tokenizer_option
@json_option
@click.option("--plot", "plot_path", type=click.Path(path_type=Path), help="Write the picture here (SVG).")
def main(data: Path, tokens: TokenCounter, results: Results, plot_path: Path | None) -> None:
    """Count, correlate, print, draw."""
    lengths = defaultdict(list)
    for one in read_answered(data, tokens):
        lengths[one.application, one.task].append((one.outcome.prompt.input_tokens, one.outcome.generated_tokens))
    pairs = {key: np.array(of_one, np.float64).T for key, of_one in sorted(lengths.items())}
    rows = [
        {
            "application": application,
            "task": task,
            "n": inputs.size,
            "pearson": round(float(np.corrcoef(inputs, answers)[0, 1]), 3),
            "input_mean": round(float(inputs.mean()), 1),
            "answer_mean": round(float(answers.mean()), 1),
        }
        for (application, task), (inputs, answers) in pairs.items()
    ]
    print_table(rows, tuple(rows[0]))
    results.write({"tokens": tokens.name, "rows": rows})
    if plot_path:
        plot({task: lengths for (_, task), lengths in pairs.items()}, plot_path)


def plot(pairs: dict[str, np.ndarray], path: Path) -> None:
    """Draw a panel of points for each task."""
    columns = 4
    rows = -(-len(pairs) // columns)
    with panels(path, rows, columns, (3.0 * columns, 2.6 * rows)) as made:
        for panel in made.flat[len(pairs) :]:
            panel.set_visible(False)
        for panel, (task, (inputs, answers)) in zip(made.flat, pairs.items(), strict=False):
            some = np.random.default_rng(0).permutation(inputs.size)[:POINTS]
            panel.scatter(inputs[some], answers[some], s=2, rasterized=True)
            panel.set(title=task, xlabel="input, tokens", ylabel="answer, tokens")


if __name__ == "__main__":
    main()
