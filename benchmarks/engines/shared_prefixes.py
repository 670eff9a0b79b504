"""Measures what the prefix cache saves requests that begin with the same instruction.

    python -m benchmarks.engines.shared_prefixes --model inference/bundled [--clock cpu] [--json F]
    python -m benchmarks.engines.shared_prefixes --size smollm2 --dtype bfloat16 [--clock cpu] [--json F]

Requests of one instruction and random inputs run in batches that they join and leave, with the cache and without it in
turn, each time with an engine that has seen nothing before.
"""

from collections import deque
from dataclasses import replace

import click

from benchmarks.engines.engine_options import Clock, clock_option, endless_model_options, threads_option
from benchmarks.engines.engine_workload import sequences
from benchmarks.experiment import Experiment, medians
from benchmarks.harness import Json, Results, json_option, print_table
from inference.engine_requests import DecodingRequest, FinishedRow
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.loading.model_loading import LoadedModel

KV_BUDGET_BYTES = 2**30  # more than any of these batches takes
COLUMNS = {
    "prefix cache": "cache",
    "prefill s": "prefill_s:.2f",
    "decode s": "decode_s:.2f",
    "all s": "total_s:.2f",
    "requests/s": "requests_per_s:.2f",
    "cached tokens": "cached_share:.0%",
    "equal answers": "equal:.0%",
}


@click.command(help=__doc__)
@endless_model_options
@click.option("--requests", default=32, show_default=True)
@click.option("--rows", default=8, show_default=True, help="Requests that run at once.")
@click.option("--shared", default=200, show_default=True, help="Tokens of the instruction.")
@click.option("--own", default=45, show_default=True, help="Tokens of each input.")
@click.option("--answer", default=45, show_default=True, help="Tokens of each answer.")
@click.option("--repeats", default=3, show_default=True)
@threads_option
@clock_option
@json_option
def main(
    loaded: LoadedModel,
    requests: int,
    rows: int,
    shared: int,
    own: int,
    answer: int,
    repeats: int,
    clock: Clock,
    results: Results,
) -> None:
    """Print the seconds of prefills and decoding with the cache and without it."""
    asked = of_one_instruction(loaded, requests, shared, own, answer)
    figures = compared(loaded, asked, rows, repeats, clock)
    print_table(medians(figures, ("cache",)), COLUMNS)
    results.write(figures)


def of_one_instruction(loaded: LoadedModel, requests: int, shared: int, own: int, answer: int) -> list[DecodingRequest]:
    """Make requests with the same first `shared` tokens, `own` other ones each, and answers of `answer` tokens."""
    vocabulary = loaded.model.config.get_text_config().vocab_size
    (instruction,) = sequences([(shared, 1)], vocabulary, seed=0)
    return [
        replace(one, prompt_ids=(*instruction.prompt_ids, *one.prompt_ids))
        for one in sequences([(own, answer)] * requests, vocabulary, seed=1)
    ]


def compared(loaded: LoadedModel, asked: list[DecodingRequest], rows: int, repeats: int, clock: Clock) -> list[Json]:
    """Serve the requests without the cache and with it in turn; an answer is equal if the first run gave it, too."""
    answers: list[dict[str, FinishedRow]] = []

    def figures(prefix_cache: bool, asked: list[DecodingRequest]) -> Json:
        found, served_now = served(loaded, asked, rows, prefix_cache, clock)
        answers.append(served_now)
        equal = [answers[0][one.id].generated_ids == served_now[one.id].generated_ids for one in asked]
        return {"cache": "on" if prefix_cache else "off", **found, "equal": sum(equal) / len(equal)}

    served(loaded, asked[:rows], rows, prefix_cache=False, clock=clock)  # warms up
    return list(Experiment({"": asked}, {"off": False, "on": True}, figures).runs(repeats))


def served(
    loaded: LoadedModel, asked: list[DecodingRequest], rows: int, prefix_cache: bool, clock: Clock
) -> tuple[Json, dict[str, FinishedRow]]:
    """Serve the requests, `rows` at once; returns the seconds and shares by name, and the answers by id."""
    engine, waiting = Engine(loaded, KV_BUDGET_BYTES, EngineOptions(prefix_cache=prefix_cache)), deque(asked)
    answers: dict[str, FinishedRow] = {}
    prefill_s, began = 0.0, clock()
    while waiting or engine.rows:
        joiners = [waiting.popleft() for _ in range(min(len(waiting), rows - len(engine.rows)))]
        if joiners:
            started = clock()
            engine.insert(joiners)
            prefill_s += clock() - started
        answers |= {row.id: row for row in engine.step()}
    total_s = clock() - began
    return {
        "prefill_s": prefill_s,
        "decode_s": total_s - prefill_s,
        "total_s": total_s,
        "requests_per_s": len(asked) / total_s,
        "cached_share": sum(row.cached_tokens or 0 for row in answers.values())
        / sum(len(one.prompt_ids) for one in asked),
    }, answers


if __name__ == "__main__":
    main()
