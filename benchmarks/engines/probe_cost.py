"""Measures what the length probe costs: the seconds of steps with it, beside those of the same steps without it.

    python -m benchmarks.engines.probe_cost [--model inference/bundled] [--json F]

Two engines serve the same toy requests to their ends, a step of one after a step of the other, so that both meet the
same machine. Their thread's own clock counts, so that work of others in between does not.
"""

import time
from collections import deque
from collections.abc import Sequence as Several
from functools import partial

import click
import torch

from benchmarks.engines.engine_options import threads_option
from benchmarks.harness import Json, Results, json_option, print_table
from inference.local.batch_rows import BatchRow
from inference.local.engine import Engine
from inference.local.loading.model_loading import LoadedModel, load_model
from inference.local.row_probe import READ_EVERY, RowProbe
from inference.prompt_format import load_prompt_format
from inference.sequences import Sequence
from inference.toy.toy_applications import toy_requests
from learning.length_probe import LengthProbe
from settings import BUNDLED_MODEL

KV_BUDGET_BYTES = 2**30  # more than the rows take
LIMIT = 256  # tokens of an answer
MEDIAN_WORDS = 25.0  # of a text
UPPER = 2  # the upper quantile of a prediction, in medians
COLUMNS = ("rows", "requests", "steps", "step_ms", "readings", "fits", "whole")


class ProbeSeconds(RowProbe):
    """Adds up the thread's seconds in readings, and in what follows the end of a row."""

    reading_s = ended_s = 0.0
    passes = 0

    def after_pass(self, rows: Several[BatchRow]) -> None:
        """Read; the clock is slow beside the other passes, in which nothing is read."""
        self.passes += 1
        began = time.thread_time() if self.passes % READ_EVERY == 0 else None
        super().after_pass(rows)
        if began is not None:
            self.reading_s += time.thread_time() - began

    def ended(self, row: BatchRow) -> None:
        """Learn."""
        began = time.thread_time()
        super().ended(row)
        self.ended_s += time.thread_time() - began


class ServedRows:
    """An engine with the requests that it still has to serve, and the seconds of its steps."""

    def __init__(self, loaded: LoadedModel, sequences: Several[Sequence], probe: RowProbe | None) -> None:
        self.engine = Engine(loaded, KV_BUDGET_BYTES, probe=probe)
        self._waiting, self.seconds, self.steps = deque(sequences), 0.0, 0

    def step(self, rows: int) -> bool:
        """Let requests join up to so many rows, and make a step; returns whether there is more to do."""
        joining = min(rows - len(self.engine.rows), len(self._waiting))
        self.engine.insert([self._waiting.popleft() for _ in range(joining)])
        began = time.thread_time()
        self.engine.step()
        self.seconds += time.thread_time() - began
        self.steps += 1
        return bool(self._waiting or self.engine.rows)


def compare(loaded: LoadedModel, sequences: Several[Sequence], rows: int) -> Json:
    """Serve them with and without a probe; returns the shares of a step's time that its parts take."""
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


def toy_sequences(model: str, number: int) -> list[Sequence]:
    """Return toy requests, predicted at their arrival with the words that they have."""
    encode = load_prompt_format(model).encode
    return [
        Sequence(
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
    loaded, sequences = load_model(model), toy_sequences(model, number)
    serve = partial(compare, loaded, sequences, rows)
    found = [serve() for _ in range(repeats)]
    print_table(found, COLUMNS)
    results.write({"rows": rows, "repeats": found, "threads": torch.get_num_threads()})


if __name__ == "__main__":
    main()
