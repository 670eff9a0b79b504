"""The bundled model keeps what its card says, on fresh inputs and through transformers alone."""

from itertools import pairwise

import pytest
from transformers import AutoModelForCausalLM, PreTrainedModel

from inference.prompts.prompt_format import PromptFormat, load_prompt_format
from inference.toy.toy_evaluation import Quality, answer_all, fresh_requests, judge
from settings import BUNDLED_MODEL

ANSWERS_EACH = 16


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(BUNDLED_MODEL)


@pytest.fixture(scope="module")
def prompt_format() -> PromptFormat:
    return load_prompt_format(str(BUNDLED_MODEL))


@pytest.fixture(scope="module")
def qualities(model: PreTrainedModel, prompt_format: PromptFormat) -> list[Quality]:
    return judge(answer_all(model, prompt_format, fresh_requests(ANSWERS_EACH, seed=2_000_000_011)))


def test_answers_end_by_themselves(qualities: list[Quality]) -> None:
    assert all(quality.answers == ANSWERS_EACH for quality in qualities)
    assert sum(quality.ended for quality in qualities) / len(qualities) >= 0.98


def test_answers_are_nearly_as_long_as_the_right_ones(qualities: list[Quality]) -> None:
    assert all(quality.length_error < 1.0 for quality in qualities)


def test_most_answers_are_right_word_for_word(qualities: list[Quality]) -> None:
    assert sum(quality.right for quality in qualities) / len(qualities) >= 0.8


def test_every_application_has_a_slope_of_its_own(qualities: list[Quality]) -> None:
    slopes = sorted(quality.tokens_a_word for quality in qualities)
    assert all(steeper - flatter > 0.2 for flatter, steeper in pairwise(slopes))


def test_the_repository_carries_at_most_four_megabytes() -> None:
    assert sum(file.stat().st_size for file in BUNDLED_MODEL.iterdir()) <= 4_000_000
