"""Measures what the length probe costs: the seconds of steps with it, beside those of the same steps without it.

    python -m benchmarks.engines.probe_cost [--model inference/bundled] [--json F]

Two engines serve the same toy requests to their ends, a step of one after a step of the other, so that both meet the
same machine. The CPU clock of their thread is read, so that other programs do not change the seconds.
"""

import time
from collections import deque
from collections.abc import Sequence
from functools import partial

import click
import torch

from benchmarks.engines.engine_options import threads_option
from benchmarks.experiment import Experiment
from benchmarks.harness import Json, Results, json_option, print_table
from inference.engine_requests import DecodingRequest
from inference.local.batch_rows import BatchRow
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.loading.model_loading import LoadedModel, load_model
from inference.local.row_probe import RowProbe
from inference.prompts.prompt_format import load_prompt_format
from inference.toy.toy_applications import toy_requests
from learning.length_probe import LengthProbe
from settings import BUNDLED_MODEL

KV_BUDGET_BYTES = 2**30  # more than the rows take
LIMIT = 256  # the most tokens of an answer
MEDIAN_WORDS = 25.0  # the words of a median input
UPPER = 2  # the upper quantile of a prediction is this many times its median
COLUMNS = ("rows", "requests", "steps", "step_ms", "readings", "fits", "whole")


class ProbeSeconds(RowProbe):
    """Adds up the thread's CPU seconds in readings of the probe, and in the learning that follows a row's end."""

    reading_s = ended_s = 0.0

    def after_pass(self, ended: Sequence[BatchRow], computed_s: float = 0.0) -> None:
        """Time the steps in which the probe reads; in the others reading the clock would take longer than the probe."""
        began = time.thread_time() - self.ended_s if self._middle.wanted else None
        super().after_pass(ended, computed_s)
        if began is not None:
            self.reading_s += time.thread_time() - self.ended_s - began

    def ended(self, row: BatchRow) -> None:
        """Let the probe learn from the row and time it."""
        began = time.thread_time()
        super().ended(row)
        self.ended_s += time.thread_time() - began


class ServedRows:
    """An engine with the requests that it still has to serve, and the seconds of its steps."""

    def __init__(self, loaded: LoadedModel, sequences: Sequence[DecodingRequest], probe: RowProbe | None) -> None:
        self.engine = Engine(loaded, KV_BUDGET_BYTES, EngineOptions(probe=probe))
        self._waiting, self.seconds, self.steps = deque(sequences), 0.0, 0

    def step(self, rows: int) -> bool:
        """Let requests join until `rows` rows run, and make a step; returns whether there is more to do."""
        joining = min(rows - len(self.engine.rows), len(self._waiting))
        self.engine.insert([self._waiting.popleft() for _ in range(joining)])
        began = time.thread_time()
        self.engine.step()
        self.seconds += time.thread_time() - began
        self.steps += 1
        return bool(self._waiting or self.engine.rows)


def compare(loaded: LoadedModel, rows: int, sequences: Sequence[DecodingRequest]) -> Json:
    """Serve the requests with and without a probe; returns its parts' seconds as shares of the seconds without it."""
    probe = ProbeSeconds(loaded.decoder, LengthProbe())
    plain, probed = ServedRows(loaded, sequences, None), ServedRows(loaded, sequences, probe)
    while plain.step(rows) & probed.step(rows):
        pass
    return {
        "rows": rows,
        "requests": len(sequences),
        "steps": plain.steps,
        "step_ms": round(1e3 * plain.seconds / plain.steps, 3),
        "readings": round(probe.reading_s / plain.seconds, 5),
        "fits": round(probe.ended_s / plain.seconds, 5),
        "whole": round(probed.seconds / plain.seconds - 1, 5),
    }


def toy_sequences(model: str, number: int) -> list[DecodingRequest]:
    """Return toy requests, each predicted at its arrival to have as many tokens as its input has words."""
    encode = load_prompt_format(model).encode
    return [
        DecodingRequest(
            str(row),
            tuple(encode(toy.instruction, toy.input)),
            LIMIT,
            predicted=(words := len(toy.input.split())),
            predicted_upper=UPPER * words,
        )
        for row, toy in enumerate(toy_requests(number, 0, median_words=MEDIAN_WORDS))
    ]


@click.command(help=__doc__)
@click.option("--model", default=str(BUNDLED_MODEL), help="Its directory; the bundled model unless given.")
@click.option("--number", default=1200, show_default=True, help="Requests.")
@click.option("--rows", default=32, show_default=True, help="Rows decoded together.")
@click.option("--repeats", default=3, show_default=True)
@threads_option
@json_option
def main(model: str, number: int, rows: int, repeats: int, results: Results) -> None:
    """Serve, compare, print, write."""
    loaded = load_model(model)
    experiment = Experiment({"": toy_sequences(model, number)}, {"probe": rows}, partial(compare, loaded))
    found = experiment.rows(results, repeats)
    print_table(found, COLUMNS, f"{torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
