"""Evaluates the bundled model on new inputs: how often its answers end on EOS, have the right length and are right.

The model answers with `model.generate`, so that the figures do not depend on our own engine.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, linear_regression

import torch
from transformers import PreTrainedModel

from inference.prompts.prompt_format import PromptFormat
from inference.toy.toy_applications import APPLICATIONS, MAX_WORDS, ToyRequest, draw_request

ANSWER_LIMIT = 256  # tokens; the longest right answer, 60 words doubled and EOS, has 121
BATCH = 64  # any value whose batch fits in memory works


@dataclass(frozen=True)
class ToyAnswer:
    """The model's answer to a request; token counts include EOS."""

    request: ToyRequest
    text: str
    tokens: int
    right_tokens: int
    ended: bool


@dataclass(frozen=True)
class Quality:
    """The figures of one application."""

    application: str
    answers: int
    ended: float  # share of answers that ended on EOS
    right: float  # share of answers that are right
    length_error: float  # mean absolute error of the length, in tokens
    tokens_a_word: float  # slope of the answer's length in tokens over the input's length in words


def fresh_requests(each: int, seed: int) -> list[ToyRequest]:
    """Draws `each` (two or more) requests of every application, with lengths spread evenly from 1 to MAX_WORDS."""
    rng = random.Random(seed)
    lengths = [1 + index * (MAX_WORDS - 1) // (each - 1) for index in range(each)]
    return [draw_request(name, words, rng) for name in APPLICATIONS for words in lengths]


@torch.inference_mode()
def answer_all(model: PreTrainedModel, prompt_format: PromptFormat, requests: Sequence[ToyRequest]) -> list[ToyAnswer]:
    """Answers the requests greedily in batches padded on the left; returns the answers in the order of the requests."""
    eos_id, pad_id = model.generation_config.eos_token_id, model.generation_config.pad_token_id
    answers = []
    for start in range(0, len(requests), BATCH):
        batch = requests[start : start + BATCH]
        prompts = [prompt_format.encode(request.instruction, request.input) for request in batch]
        width = max(map(len, prompts))
        ids = torch.tensor([[pad_id] * (width - len(prompt)) + prompt for prompt in prompts])
        generated = model.generate(
            input_ids=ids, attention_mask=(ids != pad_id).long(), max_new_tokens=ANSWER_LIMIT, do_sample=False
        )
        for request, row in zip(batch, generated[:, width:].tolist(), strict=True):
            ended = eos_id in row
            answer = row[: row.index(eos_id) + 1] if ended else row
            right_tokens = prompt_format.count(request.output) + 1
            answers.append(ToyAnswer(request, prompt_format.decode(answer), len(answer), right_tokens, ended))
    return answers


def judge(answers: Sequence[ToyAnswer]) -> list[Quality]:
    """Returns the quality of each application's answers."""
    by_application: defaultdict[str, list[ToyAnswer]] = defaultdict(list)
    for answer in answers:
        by_application[answer.request.application].append(answer)
    return [
        Quality(
            application,
            len(of_one),
            ended=fmean(answer.ended for answer in of_one),
            right=fmean(answer.text == answer.request.output for answer in of_one),
            length_error=fmean(abs(answer.tokens - answer.right_tokens) for answer in of_one),
            tokens_a_word=linear_regression(
                [len(answer.request.input.split()) for answer in of_one], [answer.tokens for answer in of_one]
            ).slope,
        )
        for application, of_one in by_application.items()
    ]
