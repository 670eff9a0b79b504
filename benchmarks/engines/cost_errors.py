"""Measures how well fitted costs predict the seconds of our engine's steps, without a service around it.

`python -m benchmarks.engines.cost_errors curves --json F` is SCLS Fig. 10, for our engine and `model.generate` of
transformers (the paper's HF): Eq. (3) and (4) are fitted to prefills and short runs of iterations, and whole batches,
measured apart from those, are estimated by Eq. (1).

`python -m benchmarks.engines.cost_errors steps --seconds 30 --json F` judges a worker's learned costs: rows join and
leave at random, and each window of steps is predicted by the curves in service when it ends, before they learn from it.
The predictions of a worker's profile at its start are shown beside them.
"""

import random
from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import replace
from itertools import product
from statistics import median
from time import monotonic, perf_counter, process_time

import click
import numpy as np
import torch
from transformers import GenerationConfig

from benchmarks.harness import Json, Results, json_option, print_table
from inference.local.cost_counters import StepLog
from inference.local.engine import Engine
from inference.local.engine_profile import QUICK, measure
from inference.local.loading.model_loading import LoadedModel, load_model
from inference.sequences import Sequence
from learning.cost_curves import Timing, fit_curves
from learning.step_costs import StepCosts, StepWindow
from scheduling.costs import ServingCurves
from settings import BUNDLED_MODEL
from tasks.serving.serving_costs import window_of_sums

SIZES, LENGTHS = (1, 2, 4, 8, 16), (16, 64, 256)
STEPS = 16  # iterations whose mean duration counts as that of one
REPEATS = 3
KV_BUDGET_BYTES = 2**32  # any value above the rows' need works: memory is not measured
FIT_EVERY_S = 3.0  # seconds between two fits, as in a worker
ROWS = (1, 2, 4, 8, 12, 16)
STEPS_BETWEEN = (5, 40)  # steps until other rows join
PROMPT_TOKENS, ANSWER_TOKENS = (10, 80), (10, 120)

Run = Callable[
    [list[tuple[int, ...]], int], float
]  # from prompts of one length and the tokens of each answer to the seconds that the batch takes


@click.group(help=__doc__)
@click.option("--model", default=str(BUNDLED_MODEL), show_default=False, help="Directory; the bundled one if unset.")
@click.option("--threads", default=0, show_default=True, help="CPU threads; 0: torch's own number.")
@click.pass_context
def main(ctx: click.Context, model: str, threads: int) -> None:
    """Choose the model and the threads for both programs."""
    if threads:
        torch.set_num_threads(threads)
    ctx.obj = lambda: load_model(model, "cpu", "auto", None)


@main.command()
@click.option("--iterations", default=128, show_default=True, help="Of the whole batches.")
@json_option
@click.pass_obj
def curves(load: Callable[[], LoadedModel], iterations: int, results: Results) -> None:
    """Compare the errors of the fitted curves for both engines."""
    figures: Json = {}
    for name, engine in (("ours", our_engine), ("transformers", transformers_engine)):
        loaded = load()
        figures[name] = errors(engine(loaded), loaded, iterations)
    columns = {
        "engine": "engine",
        "prefill RMSE s": "prefill.rmse_s:.5f",
        "of mean": "prefill.of_mean:.1%",
        "iteration RMSE s": "iteration.rmse_s:.6f",
        "of the mean": "iteration.of_mean:.1%",
        "batch |error| s": "batch.mean_error_s:.3f",
        "of its mean": "batch.of_mean:.1%",
    }
    print_table([{"engine": name, **found} for name, found in figures.items()], columns)
    results.write(figures)


@main.command()
@click.option("--seconds", default=30.0, show_default=True, help="Of steps; the second half is judged.")
@json_option
@click.pass_obj
def steps(load: Callable[[], LoadedModel], seconds: float, results: Results) -> None:
    """Print the median relative errors of steps and prefills under learned and profiled costs."""
    loaded = load()
    measured = measure(loaded, KV_BUDGET_BYTES, QUICK, 5.0)
    figures = judged(loaded, fit_curves(measured.prefills, measured.decode_steps), seconds)
    print_table([{"figure": name, "value": value} for name, value in figures.items()], ("figure", "value"))
    results.write(figures)


def our_engine(loaded: LoadedModel) -> Run:
    """Serve one static batch on our engine."""
    engine = Engine(replace(loaded, eos_ids=frozenset()), KV_BUDGET_BYTES)

    def run(prompts: list[tuple[int, ...]], tokens: int) -> float:
        started = perf_counter()
        engine.run([Sequence(str(row), prompt, tokens) for row, prompt in enumerate(prompts)])
        return perf_counter() - started

    return run


def transformers_engine(loaded: LoadedModel) -> Run:
    """Serve one static batch by one call of `generate`, greedy and without an end of sequence."""

    def run(prompts: list[tuple[int, ...]], tokens: int) -> float:
        ids = torch.tensor(prompts, device=loaded.device)
        config = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=loaded.pad_id)
        started = perf_counter()
        loaded.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        return perf_counter() - started

    return run


def errors(run: Run, loaded: LoadedModel, iterations: int) -> Json:
    """Fit the curves and compare them with the measurements."""
    rng = random.Random(0)
    vocabulary = loaded.model.config.get_text_config().vocab_size
    prefills: list[Timing] = []
    decoding: list[Timing] = []
    batches: list[Timing] = []
    for size, length in product(SIZES, LENGTHS):
        prompts = [tuple(rng.randrange(vocabulary) for _ in range(length)) for _ in range(size)]
        run(prompts, 2)  # not measured: it allocates memory and warms up
        first, some, all_s = (median(run(prompts, n) for _ in range(REPEATS)) for n in (1, 1 + STEPS, iterations))
        prefills.append((size, length, first))
        decoding.append((size, length + (STEPS + 1) / 2, (some - first) / STEPS))
        batches.append((size, length, all_s))
    fitted = fit_curves(prefills, decoding)
    whole_s = np.array([seconds for _, _, seconds in batches])
    whole = np.abs([fitted.serve_s(n, int(length), iterations - 1) for n, length, _ in batches] - whole_s)
    return {
        "prefill": _rmse(prefills, lambda size, length: fitted.prefill_s(size, int(length))),
        "iteration": _rmse(decoding, fitted.decode_step_s),
        "batch": {
            "iterations": iterations,
            "mean_error_s": round(float(whole.mean()), 5),
            "of_mean": round(float(whole.mean() / whole_s.mean()), 4),
            "largest_of_its_batch": round(float((whole / whole_s).max()), 4),
        },
        "timings": {"prefills": prefills, "iterations": decoding, "batches": batches},
        "curves": {"prefill": fitted.prefill, "decode": fitted.decode},
    }


def _rmse(timings: list[Timing], estimated: Callable[[int, float], float]) -> dict[str, float]:
    seconds = np.array([one for _, _, one in timings])
    error = np.array([estimated(size, tokens) for size, tokens, _ in timings]) - seconds
    rmse = float(np.sqrt(np.mean(error**2)))
    return {"rmse_s": round(rmse, 6), "of_mean": round(rmse / float(seconds.mean()), 4)}


def judged(loaded: LoadedModel, profile: ServingCurves, seconds: float) -> Json:
    """Run steps for these seconds and compare both kinds of costs with them."""
    rng, log, costs = random.Random(0), StepLog(), StepCosts(profile)
    engine = Engine(loaded, KV_BUDGET_BYTES, step_log=log)
    began, fit_at, fits, fit_s, sent = monotonic(), 0.0, 0, 0.0, 0
    learned: list[tuple[StepWindow, ServingCurves]] = []
    while (elapsed_s := monotonic() - began) < seconds:
        missing = rng.choice(ROWS) - len(engine.rows)
        if missing > 0:
            engine.insert([_random_sequence(str(sent + number), loaded, rng) for number in range(missing)])
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
    iterations, prefills = ([(w, c) for w, c in learned if bool(w.steps) is decoding] for decoding in (True, False))
    return {
        "steps_error": _median_error(iterations),
        "prefills_error": _median_error(prefills),
        "steps_error_of_profile": _median_error([(window, profile) for window, _ in iterations]),
        "prefills_error_of_profile": _median_error([(window, profile) for window, _ in prefills]),
        "step_windows": len(iterations),
        "prefills": len(prefills),
        "versions": costs.in_service.version if costs.in_service else 0,
        "cpu_ms_a_fit": round(1000 * fit_s / max(1, fits), 2),
    }


def _random_sequence(name: str, loaded: LoadedModel, rng: random.Random) -> Sequence:
    vocabulary = loaded.model.config.get_text_config().vocab_size
    prompt = tuple(rng.randrange(vocabulary) for _ in range(rng.randint(*PROMPT_TOKENS)))
    return Sequence(name, prompt, rng.randint(*ANSWER_TOKENS))


def _median_error(predicted: Several[tuple[StepWindow, ServingCurves]]) -> float | None:
    relative = [
        abs(float(np.dot(window.sums, [*costs.prefill, *costs.decode])) / window.seconds - 1)
        for window, costs in predicted
    ]
    return round(float(np.median(relative)), 4) if relative else None


if __name__ == "__main__":
    main()
