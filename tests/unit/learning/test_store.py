"""Stored models: the digest first, then arrays, never pickle, never torch."""

import subprocess
import sys

import pytest

from learning.features.length_predictor import Outcome, Prompt
from learning.features.text_encoders import make_encoder
from learning.predictors.predictor_factory import make_predictor
from learning.store import DigestMismatch, NotStorable, digest, dump, load


def outcomes(n: int) -> list[Outcome]:
    return [
        Outcome(Prompt("echo", "Repeat:", f"word{i} " * (i % 17 + 1), i % 17 + 1, i % 17 + 3, 100), 2 * (i % 17) + 3)
        for i in range(n)
    ]


@pytest.mark.parametrize("name", ["uilo", "raft", "inst", "usin", "forest"])
def test_a_stored_predictor_answers_as_before(name: str) -> None:
    predictor = make_predictor(name, make_encoder("hashing"))
    predictor.fit(outcomes(200))
    stored = dump(predictor)
    prompts = [o.prompt for o in outcomes(20)]
    assert load(stored, digest(stored)).predict(prompts) == predictor.predict(prompts)


def test_bytes_of_another_digest_are_not_read() -> None:
    with pytest.raises(DigestMismatch):
        load(b"anything at all", digest(b"something else"))


def test_only_models_are_stored() -> None:
    with pytest.raises(NotStorable):
        dump({"a": 1})


def test_loading_imports_no_torch() -> None:
    code = "import sys, learning.store; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
