"""How well the lengths of running rows are known: by the prediction at arrival, and by a probe of the model's states.

`python -m benchmarks.remaining_lengths --model DIR --data DIR --readings F --json F`

The model answers instructions of `benchmarks.real_lengths`, greedily and in bfloat16, while a probe reads its rows as
in a worker; the readings are kept in a file. Requests then arrive one after the other in several orders. `forest`
predicts each from the answers before it, and a new probe predicts it again as it runs, if it is in service by then.
What is compared are the tokens still to come of the requests that arrive after the first `--learned` ones.
"""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.generated_answers import DIRECTORY, LIMIT, Instruction, choose_instructions, generate
from benchmarks.harness import Json, Results, json_option, print_table, say
from benchmarks.real_lengths import ANSWERS, IN_FLIGHT, FromColdStart, learn
from inference.local.batch_rows import BatchRow
from inference.local.row_probe import READ_EVERY, RowProbe
from inference.prompt_format import PromptFormat, load_prompt_format
from learning.calibration import CalibratedPredictor
from learning.features.text_encoders import HASHING, make_encoder
from learning.length_probe import LengthProbe
from learning.predictors.length_predictor import Outcome, Prediction, Prompt
from learning.predictors.predictor_factory import make_predictor
from scheduling.costs import Floats
from scheduling.length_distributions import conditional_totals
from scheduling.rank_correlation import kendall_tau

AFTER = (0, 16, 32, 64, 96, 128)  # tokens; a row counts at its first reading from there on
COLUMNS = ("after", "rows", "tau_arrival", "tau_probe", "mae_arrival", "mae_probe", "in_service")


@dataclass(frozen=True, slots=True)
class Readings:
    """What was read of all rows, one entry a reading, and how the rows ended, by the number of their answers."""

    row: Floats
    known: Floats  # (readings, 5), as a probe gets it
    states: Floats
    tokens: Floats
    cut: Floats

    def of(self, row: int) -> Iterator[tuple[Floats, Floats]]:
        """Yield what was known at each reading of this row, and its states."""
        for reading in np.flatnonzero(self.row == row):
            yield self.known[reading], self.states[reading]


class RecordingProbe(LengthProbe):
    """Learns as in a worker, and keeps what it read."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, Floats, Floats]] = []

    def read(self, ids: Sequence[str], known: Floats, states: Floats) -> None:
        """Keep the readings."""
        super().read(ids, known, states)
        self.rows += zip(map(int, ids), known, states, strict=True)


class TimedRowProbe(RowProbe):
    """Counts the seconds that it takes of the engine's steps."""

    seconds = 0.0

    def after_pass(self, rows: Sequence[BatchRow]) -> None:
        """Read, and count it."""
        began = time.perf_counter()
        super().after_pass(rows)
        self.seconds += time.perf_counter() - began

    def ended(self, row: BatchRow) -> None:
        """Learn, and count it."""
        began = time.perf_counter()
        super().ended(row)
        self.seconds += time.perf_counter() - began


def record(model: str, prompt_format: PromptFormat, instructions: Sequence[Instruction], path: Path) -> None:
    """Let the model answer and keep the readings, with the share of the time that they took."""
    probe = RecordingProbe()
    prompts = [(prompt_format.encode(instruction, text), LIMIT) for _, instruction, text in instructions]
    timed: list[TimedRowProbe] = []

    def make_probe(decoder: Any) -> RowProbe:
        timed.append(TimedRowProbe(decoder, probe))
        return timed[0]

    tokens, cut = np.zeros(len(prompts)), np.zeros(len(prompts))
    began = 0.0
    for row, finished in generate(model, prompts, make_probe):
        began = began or time.perf_counter()
        tokens[row], cut[row] = len(finished.generated_ids), finished.reason == "limit"
        say(f"{np.count_nonzero(tokens)} of {len(prompts)}")
    share = timed[0].seconds / (time.perf_counter() - began)
    rows, known, states = (np.array(column) for column in zip(*probe.rows, strict=True))
    np.savez(path, row=rows, known=known, states=states, tokens=tokens, cut=cut, share=share)


def load_readings(path: Path) -> tuple[Readings, float]:
    """Read the file, and the share of the steps' time that the probe took."""
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    return Readings(**{name: array for name, array in arrays.items() if name != "share"}), float(arrays["share"])


def replay(readings: Readings, order: Sequence[int], predictions: Sequence[Prediction]) -> list[Mapping[str, float]]:
    """Let rows arrive and end in this order, with these predictions at arrival; return what was predicted of each."""
    probe, seen = LengthProbe(), list[Mapping[str, float]]()
    for start in range(0, len(order), IN_FLIGHT):
        group = range(start, min(start + IN_FLIGHT, len(order)))
        for place in group:
            row, predicted = order[place], predictions[place]
            for known, states in readings.of(row):
                asked = np.array([*known[:3], predicted.tokens, predicted.upper_tokens])
                probe.read([str(row)], asked[None], states[None])
                median, _ = conditional_totals(*(asked[None, column] for column in (3, 4, 1)))
                by_arrival = min(float(median[0]), asked[2])
                again = probe.lengths.get(str(row))
                seen.append(
                    {
                        "place": place,
                        "generated": asked[1],
                        "left": readings.tokens[row] - asked[1],
                        "by_arrival": by_arrival - asked[1],
                        "by_probe": (by_arrival if again is None else again.median) - asked[1],
                        "in_service": again is not None,
                    }
                )
        for place in group:
            row = order[place]
            probe.ended(str(row), int(readings.tokens[row]))
    return seen


def scores(seen: Sequence[Mapping[str, float]], after: int, learned: int) -> dict[str, float]:
    """Compare both predictions of the rows that arrived after `learned` others, once they had so many tokens."""
    at = [one for one in seen if one["place"] >= learned and after <= one["generated"] < after + READ_EVERY]
    left, by_arrival, by_probe = (np.array([one[name] for one in at]) for name in ("left", "by_arrival", "by_probe"))
    return {
        "rows": len(at),
        "tau_arrival": kendall_tau(by_arrival, left),
        "tau_probe": kendall_tau(by_probe, left),
        "mae_arrival": float(np.abs(by_arrival - left).mean()),
        "mae_probe": float(np.abs(by_probe - left).mean()),
        "in_service": float(np.mean([one["in_service"] for one in at])),
    }


@click.command(help=__doc__)
@click.option("--model", required=True, help="Directory of a fetched model, such as .magnus/models/smollm2.")
@click.option("--data", type=DIRECTORY, help="Directory of data sets in requests/*.jsonl.")
@click.option("--readings", "path", type=click.Path(path_type=Path), required=True, help="File (npz), outside git.")
@click.option("--number", default=300, show_default=True, help="Answers.")
@click.option("--learned", default=200, show_default=True, help="Requests before the first that is compared.")
@click.option("--orders", default=5, show_default=True, help="Random orders of arrival.")
@json_option
def main(model: str, data: Path | None, path: Path, number: int, learned: int, orders: int, results: Results) -> None:
    """Record, replay, print, write."""
    prompt_format = load_prompt_format(model)
    instructions = choose_instructions(data, ANSWERS, prompt_format.count)[:number]
    if not path.exists():
        record(model, prompt_format, instructions, path)
    readings, share = load_readings(path)
    outcomes = []
    for row, (application, instruction, text) in enumerate(instructions):
        tokens = prompt_format.count(text), len(prompt_format.encode(instruction, text))
        prompt = Prompt(application, instruction, text, *tokens, limit_tokens=LIMIT)
        outcomes.append(Outcome(prompt, int(readings.tokens[row]), censored=bool(readings.cut[row]), at=float(row)))
    runs = []
    for seed in range(orders):
        order = random.Random(seed).sample(range(len(instructions)), len(instructions))
        forest = FromColdStart(CalibratedPredictor(make_predictor("forest", make_encoder(HASHING))))
        runs.append(replay(readings, order, learn(forest, [outcomes[row] for row in order])))
    rows: list[Json] = []
    for after in AFTER:
        each = [scores(seen, after, learned) for seen in runs]
        rows.append({"after": after, **{name: round(float(np.mean([s[name] for s in each])), 4) for name in each[0]}})
    cut = float(np.mean(readings.cut))
    click.echo(f"{len(instructions)} answers, {cut:.0%} of them cut off at {LIMIT} tokens; {orders} orders of arrival")
    click.echo(f"the probe took {share:.2%} of the engine's time\n")
    print_table(rows, COLUMNS)
    settings: Json = {"model": Path(model).name, "answers": len(instructions), "learned": learned, "orders": orders}
    results.write({"settings": settings, "share_cut": round(cut, 4), "share_of_time": round(share, 5), "rows": rows})


if __name__ == "__main__":
    main()
