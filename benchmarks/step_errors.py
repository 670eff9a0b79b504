"""How well a worker's learned costs predict the seconds of its next steps, on the real engine, no service around it.

`python -m benchmarks.step_errors --seconds 30 --json F`

Rows join and leave at random, as many as a changing load brings. Each window of steps is predicted by the curves that
are in service when it ends, before they learn from it; beside it stands what the worker's quick profile alone predicts.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, process_time

import click
import numpy as np
import torch

from inference.local.engine import Engine
from inference.local.engine_profile import QUICK, measure
from inference.local.model_loading import LoadedModel, load_model
from inference.sequences import Sequence as EngineSequence
from inference.step_log import StepLog
from learning.estimators.cost_curves import fit_curves
from learning.step_costs import StepCosts, StepWindow
from scheduling.costs import ServingCurves
from settings import BUNDLED_MODEL
from tasks.serving.costs.step_windows import window_of_sums

FIT_EVERY_S = 3.0  # as a worker does
ROWS = (1, 2, 4, 8, 12, 16)
STEPS_BETWEEN = (5, 40)  # steps until other rows join
PROMPT_TOKENS, ANSWER_TOKENS = (10, 80), (10, 120)
KV_BUDGET_BYTES = 2**28  # memory is not what is measured


@click.command()
@click.option("--model", default=str(BUNDLED_MODEL), show_default=False, help="Directory; the bundled one if unset.")
@click.option("--seconds", default=30.0, show_default=True, help="Of steps; the second half is judged.")
@click.option("--threads", default=0, show_default=True, help="CPU threads; 0: torch's own number.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there.")
def main(model: str, seconds: float, threads: int, json_file: Path | None) -> None:
    """Print the median relative errors of steps and prefills under learned and profiled costs."""
    if threads:
        torch.set_num_threads(threads)
    loaded = load_model(model, "cpu", "auto", None)
    measured = measure(loaded, KV_BUDGET_BYTES, QUICK, 5.0)
    profile = fit_curves(measured.prefills, measured.decode_steps)
    figures = judged(loaded, profile, seconds)
    for name, value in figures.items():
        click.echo(f"{name}: {value}")
    if json_file:
        json_file.write_text(json.dumps(figures, indent=1) + "\n")


def judged(loaded: LoadedModel, profile: ServingCurves, seconds: float) -> dict[str, float | int | None]:
    """The figures of one run."""
    rng, log, costs = random.Random(0), StepLog(), StepCosts(profile)
    engine = Engine(loaded, KV_BUDGET_BYTES, step_log=log)
    began, fit_at, fits, fit_s, sent = monotonic(), 0.0, 0, 0.0, 0
    learned: list[tuple[StepWindow, ServingCurves]] = []
    while (elapsed_s := monotonic() - began) < seconds:
        missing = rng.choice(ROWS) - len(engine.rows)
        if missing > 0:
            engine.insert([_sequence(str(sent + number), loaded, rng) for number in range(missing)])
            sent += missing
        for _ in range(rng.randint(*STEPS_BETWEEN)):
            engine.step()
        windows = [window_of_sums(sums, monotonic()) for sums in log.take()]
        in_service = costs.in_service.curves if costs.in_service else profile
        learned += [(window, in_service) for window in windows if elapsed_s > seconds / 2]
        costs.add(windows)
        if elapsed_s >= fit_at:
            fit_at, fits, started = elapsed_s + FIT_EVERY_S, fits + 1, process_time()
            costs.refit()
            fit_s += process_time() - started
    steps, prefills = ([(w, c) for w, c in learned if bool(w.steps) is decoding] for decoding in (True, False))
    return {
        "steps_error": _median_error(steps),
        "prefills_error": _median_error(prefills),
        "steps_error_of_profile": _median_error([(window, profile) for window, _ in steps]),
        "prefills_error_of_profile": _median_error([(window, profile) for window, _ in prefills]),
        "step_windows": len(steps),
        "prefills": len(prefills),
        "versions": costs.in_service.version if costs.in_service else 0,
        "cpu_ms_a_fit": round(1000 * fit_s / max(1, fits), 2),
    }


def _sequence(name: str, loaded: LoadedModel, rng: random.Random) -> EngineSequence:
    vocabulary = loaded.model.config.get_text_config().vocab_size
    prompt = tuple(rng.randrange(vocabulary) for _ in range(rng.randint(*PROMPT_TOKENS)))
    return EngineSequence(name, prompt, rng.randint(*ANSWER_TOKENS))


def _median_error(predicted: Sequence[tuple[StepWindow, ServingCurves]]) -> float | None:
    errors = [
        abs(float(np.dot(window.sums, [*curves.prefill, *curves.decode])) / window.seconds - 1)
        for window, curves in predicted
    ]
    return round(float(np.median(errors)), 4) if errors else None


if __name__ == "__main__":
    main()
