"""Length predictors that start with nothing and learn from a real model's answers.

`python -m benchmarks.real_lengths --model DIR --answers F --json F`

The model answers the repository's instructions and, with --data, those of other data sets, greedily and in bfloat16 on
our engine. Answers are kept in a file; a run that was killed continues there. Requests then arrive one after the other,
and each predictor predicts them from the answers before them. It is fitted after 20, 60, 200 and 600 answers and
corrected online in between; before the first 60, a regression predicts, as in the service. An answer that was cut off
counts with the length of the limit. Figures are means over several orders of arrival.
"""

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import click

from benchmarks.generated_answers import LIMIT, answer_options, load_answers
from benchmarks.harness import Json, Results, json_option, print_table, say
from benchmarks.pictures import panels
from learning.calibration import CalibratedPredictor
from learning.features.text_encoders import HASHING, make_encoder
from learning.metrics import score
from learning.predictors.cold_start import RunningRegression
from learning.predictors.length_predictor import Outcome, Prediction, Prompt
from learning.predictors.predictor_factory import make_predictor
from learning.retraining.training_set import known_lengths

CHECKPOINTS = (0, 20, 60, 200, 600)  # answers after which every predictor is fitted anew and a new row begins
IN_FLIGHT = 10  # requests that are predicted before the first of their answers is known; a divisor of the checkpoints

FIRST_FIT = 60  # answers before a service fits its first model; until then it predicts by a regression on all of them
ANSWERS = 800  # at most; the repository alone has 218 instructions, so more of them need --data
COLUMNS = ("after", "until", "predictor", "rmse", "mae", "tau", "coverage")
PANELS = {
    "rmse": "RMSE, tokens",
    "mae": "MAE, tokens",
    "tau": "Kendall's tau",
    "coverage": "coverage of the upper quantile",
}
Row = dict[str, float]


class FromColdStart:
    """A predictor as the service uses it: `RunningRegression` until there are enough answers to fit it."""

    def __init__(self, fitted: CalibratedPredictor) -> None:
        self._fitted = fitted
        self._present: RunningRegression | CalibratedPredictor = RunningRegression()

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Fit the predictor, or the regression while there are too few outcomes."""
        self._present = self._fitted if len(outcomes) >= FIRST_FIT else RunningRegression()
        self._present.fit(outcomes)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Let the predictor or regression in use learn from these outcomes."""
        self._present.observe(outcomes)

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Predict by the predictor or regression in use."""
        return self._present.predict(prompts)


Learner = RunningRegression | CalibratedPredictor | FromColdStart


def learners(encoder: str | None) -> dict[str, Callable[[], Learner]]:
    """List the compared predictors by name; `encoder` is the directory of a sentence encoder, if there is one."""

    def calibrated(name: str, text_encoder: str = HASHING) -> CalibratedPredictor:
        return CalibratedPredictor(make_predictor(name, make_encoder(text_encoder)))

    made: dict[str, Callable[[], Learner]] = {
        "running regression": RunningRegression,
        "uilo": partial(calibrated, "uilo"),
    }
    for name in ("raft", "inst", "usin", "forest"):
        made[f"{name}, hashing"] = lambda name=name: FromColdStart(calibrated(name))  # type: ignore[misc]
    if encoder:
        for name in ("usin", "forest"):
            made[f"{name}, encoder"] = lambda name=name: FromColdStart(calibrated(name, encoder))  # type: ignore[misc]
    return made


def learn(learner: Learner, outcomes: Sequence[Outcome]) -> list[Prediction]:
    """Predict each request from the earlier answers that have already ended."""
    predictions: list[Prediction] = []
    bounds = _bounds(len(outcomes))
    for first, last in pairwise(bounds):
        learner.fit(known_lengths(outcomes[:first]))
        for start in range(first, last, IN_FLIGHT):
            arrived = outcomes[start : min(start + IN_FLIGHT, last)]
            predictions += learner.predict([o.prompt for o in arrived])
            learner.observe(arrived)
    return predictions


def curve(runs: Sequence[tuple[Sequence[Outcome], Sequence[Prediction]]]) -> list[Row]:
    """Compute scores from each checkpoint to the next, averaged over runs in different orders of arrival."""
    rows = []
    for first, last in pairwise(_bounds(len(runs[0][0]))):
        scores = [
            score(predicted[first:last], [o.generated_tokens for o in outcomes[first:last]]).as_dict()
            for outcomes, predicted in runs
        ]
        means = {name: sum(s[name] for s in scores) / len(runs) for name in ("rmse", "mae", "tau", "coverage")}
        rows.append({"after": first, "until": last, **{name: round(mean, 4) for name, mean in means.items()}})
    return rows


def _bounds(answers: int) -> list[int]:
    return [*(checkpoint for checkpoint in CHECKPOINTS if checkpoint < answers), answers]


@click.command(help=__doc__)
@answer_options
@click.option("--encoder", help="Directory of a sentence encoder, for example .magnus/models/minilm.")
@click.option("--orders", default=5, show_default=True, help="Random orders of arrival.")
@click.option("--cached-only", is_flag=True, help="Take the answers that the file has; generate none.")
@json_option
@click.option("--plot", "plot_path", type=click.Path(path_type=Path), help="Write the picture here (SVG).")
def main(
    model: str,
    cache: Path,
    data: Path | None,
    encoder: str | None,
    orders: int,
    cached_only: bool,
    results: Results,
    plot_path: Path | None,
) -> None:
    """Generate, learn, print, write."""
    answers = load_answers(cache, model, data, ANSWERS, say, cached_only)
    outcomes = [answer.outcome(at=float(i)) for i, answer in enumerate(answers)]
    curves: dict[str, list[Row]] = {}
    cpu_ms: dict[str, float] = {}
    for name, make in learners(encoder).items():
        runs = []
        began = time.process_time()
        for order in range(orders):
            arrived = random.Random(order).sample(outcomes, len(outcomes))
            runs.append((arrived, learn(make(), arrived)))
        cpu_ms[name] = round(1e3 * (time.process_time() - began) / (orders * len(outcomes)), 2)
        curves[name] = curve(runs)
    cut = sum(answer.cut for answer in answers) / len(answers)
    click.echo(f"{len(answers)} answers, {cut:.0%} of them cut off at {LIMIT} tokens; {orders} orders of arrival\n")
    checkpoints = [zip(curves, rows, strict=True) for rows in zip(*curves.values(), strict=True)]
    print_table([{"predictor": name, **row} for checkpoint in checkpoints for name, row in checkpoint], COLUMNS)
    settings: Json = {"model": Path(model).name, "answers": len(answers), "limit": LIMIT, "orders": orders}
    settings |= {"data": data is not None, "encoder": Path(encoder).name if encoder else None}
    results.write({"settings": settings, "share_cut": round(cut, 4), "curves": curves, "cpu_ms_a_request": cpu_ms})
    if plot_path:
        plot(curves, plot_path)


def plot(curves: dict[str, list[Row]], path: Path) -> None:
    """Draw a panel for each figure and a line for each predictor, over the answers seen."""
    some = next(iter(curves.values()))
    with panels(path, 1, len(PANELS), (18, 4.5)) as made:
        for panel, (figure, title) in zip(made[0], PANELS.items(), strict=True):
            for name, rows in curves.items():
                panel.plot(range(len(rows)), [row[figure] for row in rows], marker="o", label=name)
            panel.set(title=title, xlabel="answers seen", xticks=range(len(some)))
            panel.set_xticklabels([f"{row['after']:.0f}" for row in some])
            panel.grid(alpha=0.3)
        made[0][0].legend(fontsize="small")


if __name__ == "__main__":
    main()
