"""Measures how long running rows wait for joiners: the longest time between two of their tokens, for sizes of a part.

    python -m benchmarks.engines.join_gaps --model inference/bundled [--clock cpu] [--json F]
    python -m benchmarks.engines.join_gaps --size smollm2 --joiners 2 --prompt 256 [--clock cpu] [--json F]

Rows run without end while others join at once. The sizes take turns, each with an engine of its own: `costs` leaves the
size to the measured costs (no parameter prefill_tokens), a number is the most tokens of prompts between two tokens.
"""

from dataclasses import replace

import click

from benchmarks.engines.engine_options import Clock, clock_option, endless_model_options, threads_option
from benchmarks.engines.engine_workload import sequences
from benchmarks.experiment import Experiment, medians
from benchmarks.harness import Json, Results, json_option, print_table, spread
from cli.option_types import CommaSeparated
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.loading.model_loading import LoadedModel

KV_BUDGET_BYTES = 2**30  # more than any of these batches takes
RUNNING_PROMPT = 32  # the tokens of each running row's prompt
WARM_UP, BETWEEN = 10, 20  # steps before the first join, and after each join's first tokens; enough to see usual gaps
ANSWER = 4  # the tokens of each joiner's answer
COLUMNS = {
    "median gap ms": "gap_ms.p50:.1f",
    "P99": "gap_ms.p99:.1f",
    "longest": "gap_ms.max:.1f",
    "joiner's first token s": "first_token_s:.3f",
    "all s": "total_s:.2f",
}


@click.command(help=__doc__)
@endless_model_options
@click.option("--rows", default=8, show_default=True, help="Running rows.")
@click.option("--joiners", default=4, show_default=True, help="Rows of a join.")
@click.option("--joins", default=2, show_default=True, help="Joins, one after the other.")
@click.option("--prompt", default=400, show_default=True, help="Tokens of a joiner's prompt.")
@click.option("--prefill-tokens", "bounds", type=CommaSeparated(int), default="0,32,64,128", help="0: by costs.")
@click.option("--repeats", default=1, show_default=True)
@threads_option
@clock_option
@json_option
def main(
    loaded: LoadedModel,
    rows: int,
    joiners: int,
    joins: int,
    prompt: int,
    bounds: list[int],
    repeats: int,
    clock: Clock,
    results: Results,
) -> None:
    """Print the gaps between two tokens of running rows, and the joiners' time to their first token."""
    experiment = Experiment(
        {"": [(prompt, ANSWER)] * joiners},
        {str(bound or "costs"): bound for bound in bounds},
        lambda bound, lengths: gaps(loaded, rows, lengths, joins, bound, clock),
    )
    print_table(medians(experiment.rows(results, repeats)), {"tokens between steps": "system", **COLUMNS})


def gaps(loaded: LoadedModel, rows: int, lengths: list[tuple[int, int]], joins: int, bound: int, clock: Clock) -> Json:
    """Let rows of these lengths join `rows` running ones `joins` times; returns the times between steps as figures."""
    engine = Engine(loaded, KV_BUDGET_BYTES, EngineOptions(prefill_tokens=bound or None))
    vocabulary = loaded.model.config.get_text_config().vocab_size
    most = loaded.max_positions - RUNNING_PROMPT
    engine.insert(
        [replace(row, id=f"running {row.id}") for row in sequences([(RUNNING_PROMPT, most)] * rows, vocabulary, 0)]
    )
    for _ in range(WARM_UP):
        engine.step()
    gaps_s: list[float] = []
    first_tokens_s: list[float] = []
    began = last = clock()
    for join in range(1, joins + 1):
        joiners = sequences(lengths, vocabulary, join)
        waiting, joined_at, left = {row.id for row in joiners}, clock(), BETWEEN
        engine.insert(joiners)
        while left:
            ended = {row.id for row in engine.step()}
            now = clock()
            gaps_s.append(now - last)
            last, generated = now, engine.rows
            begun = {row for row in waiting if row in ended or generated.get(row)}
            first_tokens_s += [now - joined_at] * len(begun)
            waiting -= begun
            left -= not waiting
    return {
        "gap_ms": spread([1000 * gap for gap in gaps_s], digits=2),
        "first_token_s": sum(first_tokens_s) / len(first_tokens_s),
        "total_s": last - began,
        "steps": len(gaps_s),
    }


if __name__ == "__main__":
    main()
