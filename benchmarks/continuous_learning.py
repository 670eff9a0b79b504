"""Both learned models over an hour (Magnus Fig. 14): `python -m benchmarks.continuous_learning --data DIR`.

The first run changes its mix of tasks in the middle: every second task in the first half, the others in the second. The
second run serves all tasks, and from minute 20 to minute 40 the lengths in the log are shuffled. With --by-the-letter
each run is repeated with Magnus III-B as printed, which adds only mispredicted requests. Errors are measured against
the true lengths of requests that are in no stream.
"""

import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from benchmarks.harness import Results, json_option, print_table
from benchmarks.inputs.learning_stream import (
    LENGTH_EVERY_S,
    SERVING_EVERY_S,
    Learner,
    LearnerAsPrinted,
    LearningHistory,
    StreamedRequest,
    batches_of,
    length_rmse,
    poisson_arrivals,
    serving_rmse_s,
    with_shuffled_lengths,
)
from benchmarks.inputs.request_sources import AnsweredRequest, read_answered
from benchmarks.pictures import panels
from learning.features.text_encoders import HASHING, make_encoder
from learning.predictors.predictor_factory import make_predictor
from learning.retraining.training_set import TrainingSetBounds

TESTS_A_TASK = 60  # test requests of each task; more cost time at every minute of the run
NOT_WORSE = 1.02  # a published version counts as worse above this share of the error before it, on unseen requests


@click.command(help=__doc__)
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True, help="Directory of JSON lines.")
@click.option("--predictor", default="forest", show_default=True)
@click.option("--rate", default=2.0, show_default=True, help="Requests a second.")
@click.option("--minutes", default=60, show_default=True, help="Virtual time of each run.")
@click.option("--by-the-letter", is_flag=True, help="Also as Magnus III-B prints it.")
@json_option
@click.option("--plot", "plot_path", type=click.Path(path_type=Path), help="Write the picture here (SVG).")
def main(
    data: Path,
    predictor: str,
    rate: float,
    minutes: int,
    by_the_letter: bool,
    results: Results,
    plot_path: Path | None,
) -> None:
    """Run both streams, print, write."""
    answered = read_answered(data)
    tasks = sorted({a.task for a in answered})
    halves = [[a for a in answered if a.task in tasks[part::2]] for part in (0, 1)]
    histories = {}
    streams = [("changing mix", halves, Learner), ("poisoned", [answered], Learner)]
    if by_the_letter:
        streams += [(f"{name}, by the letter", mixes, LearnerAsPrinted) for name, mixes, _ in streams]
    for name, mixes, kind in streams:
        rng = random.Random(0)
        arrivals = poisson_arrivals(mixes, rate, 60 * minutes, rng)
        if name.startswith("poisoned"):
            arrivals = with_shuffled_lengths(arrivals, 20 * minutes, 40 * minutes, rng)
        learner = kind(lambda: make_predictor(predictor, make_encoder(HASHING)), TrainingSetBounds())
        histories[name] = _run(learner, arrivals, [_test_of(mix, rng) for mix in mixes], minutes, rng)
        report(name, histories[name])
    settings = {"predictor": predictor, "rate": rate, "minutes": minutes}
    results.write({"settings": settings, "runs": {name: asdict(history) for name, history in histories.items()}})
    if plot_path:
        plot(histories, plot_path)


def _run(
    learner: Learner,
    arrivals: Sequence[StreamedRequest],
    tests: Sequence[Sequence[AnsweredRequest]],
    minutes: int,
    rng: random.Random,
) -> LearningHistory:
    history = LearningHistory()
    learner.batches = batches_of(arrivals, rng)
    for second in range(60, 60 * minutes + 1, 60):
        mix = int((second - 1) / (60 * minutes) * len(tests))
        learner.serve([a for a in arrivals if second - 60 <= a.at < second])
        if second % LENGTH_EVERY_S == 0:
            before = length_rmse(learner.predictor, tests[mix])
            candidate = learner.refit_length(second)
            if candidate:
                after = length_rmse(candidate.model, tests[mix])
                history.refits.append(
                    {
                        "minute": second // 60,
                        "published": candidate.publish,
                        "reason": candidate.reason,
                        "before": round(before, 2),
                        "candidate": round(after, 2),
                        "training": candidate.data["training"],
                        "noise": len(candidate.data["noise"]),
                    }
                )
        if second % SERVING_EVERY_S == 0:
            learner.refit_serving(second)
        upcoming = [b for b in learner.batches if second < b.at <= second + 600 * len(tests)]
        history.minutes.append(second // 60)
        history.length_rmse.append(round(length_rmse(learner.predictor, tests[mix]), 2))
        history.serving_rmse_s.append(round(serving_rmse_s(learner.times, upcoming or learner.batches[-50:]), 3))
    return history


def _test_of(mix: Sequence[AnsweredRequest], rng: random.Random) -> list[AnsweredRequest]:
    """Draw the same number of test requests of each task, because the stream draws each task equally often."""
    test = []
    for task in sorted({a.task for a in mix}):
        own = [a for a in mix if a.task == task and a.is_test]
        test += rng.sample(own, min(TESTS_A_TASK, len(own)))
    return test


def plot(histories: dict[str, LearningHistory], path: Path) -> None:
    """Draw both errors over the minutes, one column for each run; refits are green if published, else red."""
    with panels(path, 2, len(histories), (6.0 * len(histories), 6)) as made:
        for column, (name, history) in enumerate(histories.items()):
            errors = {"length RMSE, tokens": history.length_rmse, "serving time RMSE, s": history.serving_rmse_s}
            for panel, (label, values) in zip(made[:, column], errors.items(), strict=True):
                panel.plot(history.minutes, values)
                panel.set(xlabel="minute", ylabel=label, ylim=(0, None))
                panel.grid(alpha=0.3)
            made[0][column].set_title(name)
            for refit in history.refits:
                made[0][column].axvline(refit["minute"], color="green" if refit["published"] else "red", alpha=0.2)


def report(name: str, history: LearningHistory) -> None:
    """Print the errors, the refits with their verdicts, and how many published versions were worse."""
    errors = zip(history.minutes, history.length_rmse, history.serving_rmse_s, strict=True)
    shown = [minute for minute in errors if minute[0] in (1, 2) or minute[0] % 3 == 0]
    columns = ("minute", "length_rmse", "serving_rmse_s")
    print_table([dict(zip(columns, one, strict=True)) for one in shown], columns, name)
    print_table(history.refits, ("minute", "before", "candidate", "published", "reason", "noise"), f"{name}: refits")
    published = [refit for refit in history.refits if refit["published"]]
    worse = sum(refit["candidate"] > NOT_WORSE * refit["before"] for refit in published)
    click.echo(f"{len(published)} of {len(history.refits)} candidates published, {worse} of them worse\n")


if __name__ == "__main__":
    main()
