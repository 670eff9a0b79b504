"""How well each length predictor does on real requests: `python -m benchmarks.prediction --data DIR [--json F]`.

Each is trained on 80 % of a task's texts and tested on the rest, task by task. Errors and ranks are those of predictors
that learned nothing from the test texts. Coverage is given as fitted and as served, where outcomes of earlier requests
correct the predictions of later ones. `--splits 3` averages over three splits by text.

`--together` follows Magnus's Table II instead: one fit for all eight tasks, on at most 2,000 requests of each, and a
test on at most 500 of each. Without `--data` the requests are the repository's toy requests.
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmarks.harness import Results, json_option, print_table, say
from benchmarks.inputs.request_sources import OWN, AnsweredRequest, TokenCounter, read_answered, tokenizer_option
from benchmarks.inputs.simulated_workloads import magnus_task
from cli.option_types import CommaSeparated
from learning.calibration import CalibratedPredictor
from learning.estimators.metrics import score
from learning.features.length_predictor import LengthPredictor, Outcome, Prediction
from learning.features.text_encoders import make_encoder
from learning.predictors.predictor_factory import make_predictor
from learning.store import digest, dump

IN_FLIGHT = 16  # this many requests are predicted before the first of their outcomes is known
BATCH = 64  # the requests of a timed batch, as many as a busy service predicts at once
SINGLES = 100  # this many requests are timed alone: enough for a median
HARD = ("chat", "code comment")
PAPERS_SIX = (
    "machine translation",
    "grammar correction",
    "text detoxification",
    "code translation",
    "bug fixing",
    "code comment",
)
TABLE_II_TRAINING, TABLE_II_TEST = 2000, 500  # the most requests of each task, as in the paper
FIRST_PREDICTION = """
import sys, time
began = time.perf_counter()
from learning.features.length_predictor import Prompt
from learning.store import load
stored = open(sys.argv[1], "rb").read()
predictor = load(stored, bytes.fromhex(sys.argv[2]))
predictor.predict([Prompt("a", "Fix:", "some text", 2, 3, 100)])
print(time.perf_counter() - began, time.process_time(), "torch" in sys.modules)
"""

COLUMNS = {
    "": "",
    "predictor": "predictor",
    "n": "n:.0f",
    "RMSE": "rmse:.1f",
    "MAE": "mae:.1f",
    "Acc-50": "acc_50:.3f",
    "Acc-100": "acc_100:.3f",
    "tau": "tau:.3f",
    "pairs": "pair_accuracy:.3f",
    "cover": "coverage:.3f",
    "served": "served_coverage:.3f",
}

Predicted = dict[str, list[tuple[Outcome, Prediction, Prediction]]]  # by task: outcome, prediction as fitted, as served


@click.command(help=__doc__)
@click.option("--data", type=click.Path(exists=True, path_type=Path), help="Directory of JSON lines.")
@click.option("--together", is_flag=True, help="One fit for all tasks, as in Table II.")
@tokenizer_option
@click.option("--encoder", default="hashing", show_default=True, help="hashing or a sentence-transformers model.")
@click.option("--predictors", type=CommaSeparated(), default="uilo,raft,inst,usin,forest", show_default=True)
@click.option("--splits", default=1, show_default=True, help="So many splits by text.")
@json_option
def main(
    data: Path | None,
    together: bool,
    tokens: TokenCounter,
    encoder: str,
    predictors: list[str],
    splits: int,
    results: Results,
) -> None:
    """Fit, predict, score, print."""
    say(f"requests: {data or OWN}; counted by {tokens.name}")
    answered = read_answered(data, tokens)
    random.Random(0).shuffle(answered)
    settings = {"requests": data.name if data else OWN, "tokens": tokens.name, "encoder": encoder, "splits": splits}
    figures: dict[str, Any] = {}
    if together:
        rows = [table_ii_row(name, make_predictor(name, make_encoder(encoder)), answered) for name in predictors]
        print_table(rows, list(rows[0]), "One fit for all tasks: RMSE in tokens")
        results.write({"settings": settings, "together": rows})
        return
    for name in predictors:
        make = partial(make_predictor, name, make_encoder(encoder))
        runs: list[dict[str, Any]] = []
        for split in range(splits):
            predicted, speed = _run(make, answered, split)
            runs.append({"speed": speed, "rows": _rows(predicted, answered)})
        figures[name] = {"rows": _means([run["rows"] for run in runs]), "splits": runs}
        click.echo(f"{name}: {json.dumps(speed)}", err=True)
    names = next(iter(figures.values()))["rows"]
    rows = [{"": row, "predictor": name} | figures[name]["rows"][row] for row in names for name in figures]
    print_table(rows, COLUMNS)
    results.write({"settings": settings, "predictors": figures})


def table_ii_row(name: str, predictor: LengthPredictor, answered: Sequence[AnsweredRequest]) -> dict[str, Any]:
    """Fit one predictor on 2,000 requests of each of Magnus's eight tasks; returns its RMSE on 500 others of each."""
    of_task: dict[str, list[AnsweredRequest]] = defaultdict(list)
    for one in answered:
        if one.application != "chat":
            of_task[magnus_task(one)].append(one)
    test = {task: [one.outcome for one in those if one.is_test][:TABLE_II_TEST] for task, those in of_task.items()}
    training = [[one.outcome for one in those if not one.is_test][:TABLE_II_TRAINING] for those in of_task.values()]
    predictor.fit([outcome for outcomes in training for outcome in outcomes])
    rmse = {
        task: score(predictor.predict([o.prompt for o in outcomes]), [o.generated_tokens for o in outcomes]).rmse
        for task, outcomes in sorted(test.items())
    }
    tested = [outcome for outcomes in test.values() for outcome in outcomes]
    whole = score(predictor.predict([o.prompt for o in tested]), [o.generated_tokens for o in tested])
    return {"predictor": name, "all": round(whole.rmse, 2)} | {task: round(one, 2) for task, one in rmse.items()}


def _run(
    make: Callable[[], LengthPredictor], answered: Sequence[AnsweredRequest], split: int
) -> tuple[Predicted, dict[str, float]]:
    """Fit a predictor to each task and predict its test texts; returns the predictions and the speed."""
    predicted: Predicted = {}
    fits_s: list[float] = []
    batches_ms: list[float] = []
    singles_ms: list[float] = []
    predictor = make()
    for task, requests in _by_task(answered).items():
        predictor = make()
        began = time.perf_counter()
        predictor.fit([a.outcome for a in requests if not a.is_test_in(split)])
        fits_s.append(time.perf_counter() - began)
        outcomes = [a.outcome for a in requests if a.is_test_in(split)]
        fitted = _timed(predictor, outcomes, BATCH, batches_ms)
        _timed(predictor, outcomes[:SINGLES], 1, singles_ms)
        predicted[task] = list(zip(outcomes, fitted, _served(predictor, outcomes), strict=True))
    speed = {
        "fit_s": round(sum(fits_s), 2),
        "ms_in_batches_of_64": round(statistics.median(batches_ms), 3),
        "ms_alone": round(statistics.median(singles_ms), 3),
    }
    return predicted, speed | _first_prediction(predictor)


def _timed(
    predictor: LengthPredictor, outcomes: Sequence[Outcome], size: int, milliseconds: list[float]
) -> list[Prediction]:
    """Predict in batches of this size; adds each batch's milliseconds a request to `milliseconds`."""
    predicted: list[Prediction] = []
    for chunk in _chunks(outcomes, size):
        began = time.perf_counter()
        predicted += predictor.predict([o.prompt for o in chunk])
        milliseconds.append(1e3 * (time.perf_counter() - began) / len(chunk))
    return predicted


def _served(predictor: LengthPredictor, outcomes: Sequence[Outcome]) -> list[Prediction]:
    """Predict as a service does, which corrects predictions by the outcomes that it knows by then."""
    service = CalibratedPredictor(predictor)
    served: list[Prediction] = []
    for chunk in _chunks(outcomes, IN_FLIGHT):
        served += service.predict([o.prompt for o in chunk])
        service.observe(chunk)
    return served


def _first_prediction(predictor: LengthPredictor) -> dict[str, float]:
    """Measure the stored model's size, and the seconds in which a new process loads it and predicts once."""
    stored = dump(predictor)
    with tempfile.NamedTemporaryFile() as file:
        file.write(stored)
        file.flush()
        command = [sys.executable, "-c", FIRST_PREDICTION, file.name, digest(stored).hex()]
        seconds, cpu_s, torch = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return {
        "stored_bytes": len(stored),
        "load_and_first_prediction_s": round(float(seconds), 2),
        "load_and_first_prediction_cpu_s": round(float(cpu_s), 2),
        "loads_torch": torch == "True",
    }


def _rows(predicted: Predicted, answered: Sequence[AnsweredRequest]) -> dict[str, dict[str, float]]:
    """Score each task, each application, three groups of applications, and all requests."""
    application_of = {a.task: a.application for a in answered}
    rows = {f"task: {task}": [task] for task in sorted(predicted)}
    for application in sorted(set(application_of.values())):
        rows[application] = [task for task in predicted if application_of[task] == application]
    rows["hard: chat, code comment"] = [task for task in predicted if application_of[task] in HARD]
    rows["easy: the rest"] = [task for task in predicted if application_of[task] not in HARD]
    rows["the paper's six"] = [task for task in predicted if application_of[task] in PAPERS_SIX]
    rows["all"] = list(predicted)
    return {row: _scores([each for task in tasks for each in predicted[task]]) for row, tasks in rows.items() if tasks}


def _scores(predicted: Sequence[tuple[Outcome, Prediction, Prediction]]) -> dict[str, float]:
    lengths = [outcome.generated_tokens for outcome, _, _ in predicted]
    fitted = score([as_fitted for _, as_fitted, _ in predicted], lengths).as_dict()
    served = score([as_served for _, _, as_served in predicted], lengths).as_dict()
    return fitted | {"served_coverage": served["coverage"], "served_rmse": served["rmse"], "served_tau": served["tau"]}


def _means(runs: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return each row's scores, averaged over the splits."""
    return {
        row: {name: round(statistics.fmean(run[row][name] for run in runs), 4) for name in scores}
        for row, scores in runs[0].items()
    }


def _by_task(answered: Iterable[AnsweredRequest]) -> dict[str, list[AnsweredRequest]]:
    by_task: dict[str, list[AnsweredRequest]] = defaultdict(list)
    for each in answered:
        by_task[each.task].append(each)
    return dict(sorted(by_task.items()))


def _chunks(outcomes: Sequence[Outcome], size: int) -> list[Sequence[Outcome]]:
    return [outcomes[i : i + size] for i in range(0, len(outcomes), size)]


if __name__ == "__main__":
    main()
