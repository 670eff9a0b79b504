import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, AutoTokenizer

from inference.toy.toy_applications import ToyRequest
from inference.toy.toy_evaluation import ToyAnswer, judge
from inference.toy.toy_lessons import EOS_ID, VOCABULARY_SIZE, batches, train_tokenizer
from inference.toy.toy_training import answer_loss, main, make_model, train

TOKENIZER = train_tokenizer()


def test_the_same_seed_gives_the_same_lessons() -> None:
    assert list(batches(TOKENIZER, 5, 1024, seed=2)) == list(batches(TOKENIZER, 5, 1024, seed=2))
    assert list(batches(TOKENIZER, 5, 1024, seed=2)) != list(batches(TOKENIZER, 5, 1024, seed=3))


def test_the_loss_falls_and_the_same_seed_gives_the_same_weights() -> None:
    def trained() -> Any:
        torch.manual_seed(0)
        model = make_model(VOCABULARY_SIZE)
        train(model, batches(TOKENIZER, 12, 512, seed=5), steps=12)
        return model

    lesson = next(batches(TOKENIZER, 1, 512, seed=6))
    untrained = make_model(VOCABULARY_SIZE)
    first, second = trained(), trained()
    assert answer_loss(first, lesson).item() < answer_loss(untrained, lesson).item() - 0.5
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_the_script_writes_a_model_directory_that_transformers_loads(tmp_path: Path) -> None:
    run = CliRunner().invoke(
        main, ["--steps", "2", "--threads", "1", "--answers", "2", "--out", str(tmp_path / "model")]
    )
    assert run.exit_code == 0, run.output
    assert "step 2 of 2" in run.output
    assert "tokens a word" in run.output
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").generation_config.eos_token_id == EOS_ID
    assert AutoTokenizer.from_pretrained(tmp_path / "model").eos_token == "<eos>"
    assert json.loads((tmp_path / "model" / "config.json").read_text())["model_type"] == "llama"


def test_an_evaluation_counts_what_ended_what_was_right_and_the_slope() -> None:
    def answer(words: int, said: str, tokens: int, ended: bool) -> ToyAnswer:
        request = ToyRequest("repeat", "Repeat the text.", " ".join(["cat"] * words), " ".join(["cat"] * words))
        return ToyAnswer(request, said, tokens, right_tokens=words + 1, ended=ended)

    # Tokens 3, 5, 9 over words 2, 4, 6: the slope is (-2 * (3 - 17/3) + 2 * (9 - 17/3)) / 8 = 1.5.
    answers = [answer(2, "cat cat", 3, True), answer(4, "cat cat cat cat", 5, True), answer(6, "cat", 9, False)]
    (repeat,) = judge(answers)
    assert (repeat.application, repeat.answers) == ("repeat", 3)
    assert repeat.ended == repeat.right == pytest.approx(2 / 3)
    assert repeat.length_error == pytest.approx(2 / 3)
    assert repeat.tokens_a_word == pytest.approx(1.5)
