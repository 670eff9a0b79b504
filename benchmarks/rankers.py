"""Does learning to rank order chat better than forest? `python -m benchmarks.rankers --data DIR --encoder DIR`.

Two rankers in a kernel of hashed words and the encoder's vector: pairwise logistic loss, with PARS's margin (pairs that
differ by less than 20 % do not count) and without, and the likelihood of whole lists (ListMLE). Each by itself,
and its score added to the logarithm of what `forest` predicts. Also `forest` without its patterns of intent. Kendall's
tau on texts that were not trained on, the mean of five folds.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.optimize import minimize

from benchmarks.harness import Results, json_option, print_table
from benchmarks.request_sources import CRUDE, read_answered, token_counter
from learning.features import text_vectors
from learning.features.intent_features import INTENT_VALUES, intent_features
from learning.features.text_encoders import HASHING, Encoder, make_encoder
from learning.features.text_vectors import TextVectors, read_texts
from learning.predictors.forest import ForestPredictor
from learning.predictors.length_predictor import Outcome
from scheduling.costs import Floats
from scheduling.rank_correlation import kendall_tau

FOLDS = 5
TASKS = ("chat_vicuna_7b_v1_5", "chat_qwen1_5_7b_chat")
MARGINS = (0.0, 0.2)  # 0.2 is PARS's
PENALTIES = (1e-3, 3e-3, 1e-2)  # below and above the best by itself
LISTS, LIST_LENGTH = 200, 32  # random lists of ListMLE
INTENTS = intent_features.__name__  # as the module that hashes texts knows it
BESIDE_FOREST = 0.5  # the weight of the ranker's standardised score beside forest's


@click.command(help=__doc__)
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True, help="Directory of JSON lines.")
@click.option("--encoder", required=True, help="Directory of a sentence encoder, for example .magnus/models/minilm.")
@json_option
def main(data: Path, encoder: str, results: Results) -> None:
    """Fit, rank, print."""
    answered = read_answered(data, token_counter(CRUDE))
    taus = {}
    for task in TASKS:
        outcomes = [one.outcome for one in answered if one.task == task]
        folds = [_taus(training, test, make_encoder(encoder)) for training, test in _folds(outcomes)]
        taus[task] = {name: round(float(np.mean([fold[name] for fold in folds])), 3) for name in folds[0]}
    print_table(
        [{"tau": name} | {task: taus[task][name] for task in TASKS} for name in taus[TASKS[0]]], ("tau", *TASKS)
    )
    results.write({"folds": FOLDS, "tau": taus})


def _folds(outcomes: Sequence[Outcome]) -> Iterator[tuple[list[Outcome], list[Outcome]]]:
    """Training and test outcomes; requests with one text are in the same fold."""
    texts = sorted({outcome.prompt.input for outcome in outcomes})
    random.Random(3).shuffle(texts)
    fold_of = {text: number % FOLDS for number, text in enumerate(texts)}
    for fold in range(FOLDS):
        yield (
            [o for o in outcomes if fold_of[o.prompt.input] != fold],
            [o for o in outcomes if fold_of[o.prompt.input] == fold],
        )


def _taus(training: Sequence[Outcome], test: Sequence[Outcome], encoder: Encoder) -> dict[str, float]:
    """Kendall's tau of each way to rank."""
    lengths = np.array([o.generated_tokens for o in training], np.float64)
    actual = np.array([o.generated_tokens for o in test], np.float64)
    hashing = make_encoder(HASHING)
    by_forest = _forest(encoder, training, test)
    ranked = {"forest, hashing": _forest(hashing, training, test), "forest, encoder": by_forest}
    with _no_intents():
        ranked["forest, hashing, no intents"] = _forest(hashing, training, test)
        ranked["forest, encoder, no intents"] = _forest(encoder, training, test)
    known, asked = _read(training, encoder), _read(test, encoder)
    among, between = _products(known, known), _products(asked, known)
    for penalty in PENALTIES:
        duals = {f"pairwise, margin {margin:g}": _pairwise(among, lengths, penalty, margin) for margin in MARGINS}
        duals["listwise"] = _listwise(among, lengths, penalty)
        for name, dual in duals.items():
            scores = between @ dual
            ranked[f"{name}, penalty {penalty:g}"] = scores
            beside = _standardised(np.log(by_forest)) + BESIDE_FOREST * _standardised(scores)
            ranked[f"forest, encoder + {name}, penalty {penalty:g}"] = beside
    return {name: kendall_tau(scores, actual) for name, scores in ranked.items()}


def _forest(encoder: Encoder, training: Sequence[Outcome], test: Sequence[Outcome]) -> Floats:
    predictor = ForestPredictor(encoder)
    predictor.fit(training)
    return np.array([p.tokens for p in predictor.predict([o.prompt for o in test])], np.float64)


@contextmanager
def _no_intents() -> Iterator[None]:
    """Texts are hashed without the patterns of intent."""
    read = vars(text_vectors)[INTENTS]
    setattr(text_vectors, INTENTS, lambda text: np.zeros(INTENT_VALUES, np.float32))
    try:
        yield
    finally:
        setattr(text_vectors, INTENTS, read)


def _read(outcomes: Sequence[Outcome], encoder: Encoder) -> TextVectors:
    return read_texts([o.prompt for o in outcomes], encoder, np.ones(len(outcomes), bool))


def _products(some: TextVectors, others: TextVectors) -> Floats:
    return np.asarray((some.hashed @ others.hashed.T).toarray() + some.encoded @ others.encoded.T, np.float64)


def _standardised(scores: Floats) -> Floats:
    return np.asarray((scores - scores.mean()) / scores.std())


def _pairwise(products: Floats, lengths: Floats, penalty: float, margin: float) -> Floats:
    """Dual weights that minimise the logistic loss of all pairs whose lengths differ by more than this share."""
    difference = lengths[:, None] - lengths[None]
    counts = difference > margin * np.maximum(lengths[:, None], lengths[None])
    share = 1 / counts.sum()

    def loss(dual: Floats) -> tuple[float, Floats]:
        scores = products @ dual
        odds = np.exp(-np.clip(scores[:, None] - scores[None], -30, 30))
        slopes = share * counts * odds / (1 + odds)
        of_scores = slopes.sum(axis=0) - slopes.sum(axis=1)
        total = share * float((counts * np.log1p(odds)).sum()) + penalty * float(dual @ scores)
        return total, products @ of_scores + 2 * penalty * scores

    return _minimised(loss, len(lengths))


def _listwise(products: Floats, lengths: Floats, penalty: float) -> Floats:
    """Dual weights that make the order of random lists, the longest first, most likely (ListMLE)."""
    rng = np.random.default_rng(0)
    drawn = np.array([rng.choice(len(lengths), LIST_LENGTH, replace=False) for _ in range(LISTS)])
    lists = np.take_along_axis(drawn, np.argsort(-lengths[drawn], axis=1), axis=1)

    def loss(dual: Floats) -> tuple[float, Floats]:
        scores = products @ dual
        listed = scores[lists]
        highest = listed.max(axis=1, keepdims=True)
        weights = np.exp(listed - highest)
        rest = np.cumsum(weights[:, ::-1], axis=1)[:, ::-1]  # of each place and all behind it
        of_scores = np.zeros(len(lengths))
        np.add.at(of_scores, lists.ravel(), ((weights * np.cumsum(1 / rest, axis=1) - 1) / lists.size).ravel())
        total = float((np.log(rest) + highest - listed).sum()) / lists.size + penalty * float(dual @ scores)
        return total, products @ of_scores + 2 * penalty * scores

    return _minimised(loss, len(lengths))


def _minimised(loss: Callable[..., Any], size: int) -> Floats:
    found = minimize(loss, np.zeros(size), jac=True, method="L-BFGS-B", options={"maxiter": 60})
    return np.asarray(found.x)


if __name__ == "__main__":
    main()
