"""Greedy answers to rendered prompts, with and without a question in them, generated once and kept in a JSON file."""

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.real_lengths.real_answers import KV_BUDGET_BYTES, ROWS, replace_file
from inference import sequences
from inference.local.engine import Engine
from inference.local.model_loading import load_model
from inference.prompt_format import load_prompt_format
from learning.predictors.language_model import STATEMENT_TOKENS

SAVE_EVERY = 32  # answers, about 20 s of work that a killed run loses


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """What followed a prompt; `opening` is the text of its first tokens, in which a statement must stand."""

    text: str
    opening: str
    tokens: int
    cut: bool


def load_texts(
    cache: Path, model: str, limits: Mapping[str, int], report: Callable[[str], None]
) -> dict[str, GeneratedText]:
    """What the model writes after each prompt, by prompt: at most its limit's tokens, greedily and in bfloat16.

    The limits of prompts that the file has are not compared with those that it was written with.
    """
    settings = {"model": Path(model).name, "dtype": "bfloat16"}
    known: dict[str, GeneratedText] = {}
    if cache.exists():
        stored = json.loads(cache.read_text(encoding="utf-8"))
        if stored["settings"] != settings:
            raise ValueError(f"{cache} has texts of {stored['settings']}, not of {settings}: name another file")
        known = {prompt: GeneratedText(**text) for prompt, text in stored["texts"].items()}
    missing = [prompt for prompt in limits if prompt not in known]
    if not missing:
        return known
    prompt_format = load_prompt_format(model)
    waiting = deque(
        sequences.Sequence(str(row), tuple(prompt_format.encode_raw(prompt)), limits[prompt])
        for row, prompt in enumerate(missing)
    )
    engine, number = Engine(load_model(model, dtype="bfloat16"), KV_BUDGET_BYTES), 0
    while waiting or engine.rows:
        engine.insert([waiting.popleft() for _ in range(min(ROWS - len(engine.rows), len(waiting)))])
        for finished in engine.step():
            ids = finished.generated_ids
            known[missing[int(finished.id)]] = GeneratedText(
                prompt_format.decode(ids),
                prompt_format.decode(ids[:STATEMENT_TOKENS]),
                len(ids),
                cut=finished.reason == "limit",
            )
            number += 1
            if number % SAVE_EVERY == 0 or number == len(missing):
                texts = {prompt: asdict(text) for prompt, text in known.items()}
                replace_file(cache, {"settings": settings, "texts": texts})
                report(f"{number} of {len(missing)} texts")
    return known
