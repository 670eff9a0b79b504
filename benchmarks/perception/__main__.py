"""How well a language model predicts the lengths of its own answers (Sequence Scheduling, Tables 1 to 3).

`python -m benchmarks.perception --model DIR --answers F --json F2`

The model answers the repository's instructions and, with --data, those of other data sets, greedily and in bfloat16 on
our engine. Answers are generated once and kept in a file; answers to prompts that ask for a length are kept in another
file beside it. Predictors are fitted on a part of the prompts and tested on the rest. Table 2 has errors of the
stated words against the written ones, Table 3 errors in tokens before and after tuning, with plain baselines; the JSON
also has examples for Table 1. It is written after each row of Table 3; a run with the same settings and file adds rows.
"""

import json
import random
import statistics
import time
from pathlib import Path

import click

from benchmarks.generated_answers import LIMIT, answer_options, load_answers, load_texts
from benchmarks.harness import Json, Results, json_option, print_table
from benchmarks.perception.changed_answers import compare_answers, prompts_to_answer, score_statements, words_in
from benchmarks.perception.predictor_rows import contestants, measure
from inference.prompt_format import load_prompt_format
from learning.predictors.language_model import shared_language_model
from learning.retraining.training_set import known_lengths

ANSWERS = 360  # at most; the repository alone has 218 instructions, so more of them need --data
TEST_SHARE = 0.3  # share of the prompts on which predictors are tested
LONGEST_PROMPT = 110  # tokens; longer prompts are left out because they take too much time
# Table 2: errors in words of the prompts that got a number, and the share of those that got none.
WORD_COLUMNS = {
    "words": "words",
    "statements": "n",
    "error": "mae:.0f",
    "median error": "median_error:.0f",
    "Acc-50": "acc_50:.0%",
    "Acc-100": "acc_100:.0%",
    "failures": "failures:.0%",
}
# Table 3: errors in tokens of all test prompts, statements that failed, and milliseconds.
TOKEN_COLUMNS = {
    "tokens": "tokens",
    "error": "scores.mae:.1f",
    "Acc-50": "scores.acc_50:.1%",
    "Acc-100": "scores.acc_100:.1%",
    "tau": "scores.tau:.3f",
    "failures": "stated.failures:.1%",
    "ms": "ms_a_prediction:.3g",
    "CPU ms": "cpu_ms_a_prediction:.3g",
}


@click.command(help=__doc__)
@answer_options
@click.option("--epochs", default=1, show_default=True, help="Of instruction tuning and of the [LEN] token's.")
@click.option("--predictor-model", help="Directory of the model for the predictors that ask one; default: --model.")
@click.option("--only", multiple=True, help="Name of a predictor, may be given several times; others are left out.")
@json_option
def main(
    model: str,
    cache: Path,
    data: Path | None,
    epochs: int,
    predictor_model: str | None,
    only: tuple[str, ...],
    results: Results,
) -> None:
    """Generate, ask, fit, score, write, print."""
    began = time.perf_counter()

    def report(line: str) -> None:
        click.echo(f"{time.perf_counter() - began:6.0f} s  {line}", err=True)

    asked = predictor_model or model
    chosen = contestants(asked, epochs)
    if unknown := set(only) - set(chosen):
        raise click.BadParameter(f"no predictor {', '.join(sorted(unknown))}; there are {', '.join(chosen)}")
    answers = load_answers(cache, model, data, ANSWERS, report)
    random.Random(0).shuffle(answers)
    tested = round(TEST_SHARE * len(answers))
    test_answers, training_answers = (
        [answer for answer in part if answer.prompt_tokens <= LONGEST_PROMPT]
        for part in (answers[:tested], answers[tested:])
    )
    test = [answer.outcome(at=float(i)) for i, answer in enumerate(test_answers)]
    training = known_lengths([answer.outcome(at=float(i)) for i, answer in enumerate(training_answers)])
    prompts = [outcome.prompt for outcome in test]
    cut = sum(outcome.censored for outcome in test) / len(test)
    settings = {"model": Path(model).name, "data": data is not None, "answers": len(answers), "limit": LIMIT}
    settings |= {"longest": LONGEST_PROMPT, "training": len(training), "test": len(test)}
    settings |= {"dtype_of_predictors": str(shared_language_model(asked).model.dtype)}
    figures: Json = {"settings": settings, "share_cut_in_test": round(cut, 4)}
    report(f"{len(answers)} answers: {len(training)} to fit on, {len(test)} to test with, of which {cut:.0%} cut off")

    render = shared_language_model(asked).render
    to_answer = prompts_to_answer(prompts, render, LIMIT)
    texts = load_texts(cache.with_name(f"{cache.stem}_questioned.json"), model, to_answer, report)
    number_of_tokens = load_prompt_format(model).count
    usual = round(statistics.median(words_in(answer.text) for answer in training_answers))
    figures |= compare_answers(test_answers, prompts, render, texts, number_of_tokens, LIMIT, usual)

    rows = figures["predictors"] = _known_rows(results, settings)
    for name in only or chosen:
        rows[name] = rows.get(name) or measure(chosen[name], training, test)
        report(f"{name}: {json.dumps(rows[name]['scores'])}")
        if "perception only" in rows:
            words = [words_in(answer.text) for answer in test_answers]
            numbers = rows["perception only"]["numbers"]
            figures["words"]["perception only: the service's answer"] = score_statements(numbers, words)
        results.write(figures)
    print_table([{"words": name, **row} for name, row in figures["words"].items()], WORD_COLUMNS)
    print_table([{"tokens": name, **row} for name, row in rows.items()], TOKEN_COLUMNS)


def _known_rows(results: Results, settings: Json) -> Json:
    """Read the rows of an earlier run of the same settings from the file; empty if there are none."""
    written = results.earlier() or {}
    return dict(written["predictors"]) if written.get("settings") == settings else {}


if __name__ == "__main__":
    main()
