"""What a model states in advance, and how this changes the answer that follows (Tables 1 and 2, section 3.1)."""

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.generated_answers import GeneratedText, RealAnswer
from learning.metrics import score
from learning.predictors.language_model import MOST_NUMBER, NUMBER, STATEMENT_TOKENS
from learning.predictors.length_predictor import Prediction, Prompt
from learning.predictors.perception import QUESTIONS

# Chinese and Japanese are written without blanks: there each character counts as a word.
WORD = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]|[^\s\u3040-\u30ff\u4e00-\u9fff]+")
# A first line that states a length and does not begin an answer: a number alone, or a number of words.
OF_WORDS = re.compile(r"^\W*\d+\W*$|\d+\W*words?\b|\bwords?\b.*\d", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Statement:
    """A model's reply to the question for its length: its first number, if any, and its answer.

    `of_words` is true if the first line has the number and says that it counts words, or nothing else; then the answer
    follows that line. Any other number may mean anything, so the answer is the whole text.
    """

    words: int | None
    of_words: bool
    answer: str


def read_statement(text: str, opening: str) -> Statement:
    """Read the statement from a text; its number must be in the `opening`, the first tokens of the text."""
    number = NUMBER.search(opening)
    if number is None:
        return Statement(None, of_words=False, answer=text.strip())
    first_line, _, rest = text.lstrip().partition("\n")
    of_words = NUMBER.search(first_line) is not None and OF_WORDS.search(first_line) is not None
    return Statement(min(int(number.group()), MOST_NUMBER), of_words, (rest if of_words else text).strip())


def words_in(text: str) -> int:
    """Count the words of a text."""
    return len(WORD.findall(text))


def score_statements(stated: Sequence[int | None], written: Sequence[int]) -> dict[str, float]:
    """Score the numbers against the written lengths; `failures` is the share without a number."""
    pairs = [(number, length) for number, length in zip(stated, written, strict=True) if number is not None]
    failures = {"asked": len(stated), "failures": round(1 - len(pairs) / len(stated), 4)}
    if not pairs:
        return failures
    median_error = float(np.median([abs(number - length) for number, length in pairs]))
    scores = score([Prediction(number, number) for number, _ in pairs], [length for _, length in pairs]).as_dict()
    shown = {name: scores[name] for name in ("n", "mae", "acc_50", "acc_100", "tau")}
    return failures | {"median_error": median_error} | shown


PAPERS_PROMPT = "Create a fun math question for children."  # the prompt in the paper's Table 1
EXAMPLES = 4  # test prompts shown in full beside the paper's: those with the shortest inputs

Render = Callable[[Prompt, str], str]


def prompts_to_answer(test: Sequence[Prompt], render: Render, limit: int) -> dict[str, int]:
    """Render each prompt without and with the question, the paper's example first; returns the limit of each.

    With the question the limit is longer by the tokens of a statement.
    """
    limits = {"": limit, QUESTIONS["in_advance"]: limit + STATEMENT_TOKENS}
    example = Prompt("", PAPERS_PROMPT, "", 0, 0, limit)
    return {render(prompt, question): most for prompt in (example, *test) for question, most in limits.items()}


def compare_answers(
    answers: Sequence[RealAnswer],
    prompts: Sequence[Prompt],
    render: Render,
    texts: Mapping[str, GeneratedText],
    count: Callable[[str], int],
    limit: int,
    usual_words: int,
) -> dict[str, Any]:
    """Compute the errors of the statements in words, and compare the answers with and without the question.

    `service` are the answers of the service; `alone` those to the prompt as predictors render it, without the
    question. `usual_words` is the baseline: the same number for every prompt.
    """
    alone = [texts[render(prompt, "")] for prompt in prompts]
    asked = [texts[render(prompt, QUESTIONS["in_advance"])] for prompt in prompts]
    read = [read_statement(text.text, text.opening) for text in asked]
    own_words = [words_in(statement.answer) for statement in read]
    service_words = [words_in(answer.text) for answer in answers]
    stated = [statement.words for statement in read]
    of_words = [statement.words if statement.of_words else None for statement in read]
    errors = {
        "in advance, any number: the answer with it": score_statements(stated, own_words),
        "in advance, any number: the service's answer": score_statements(stated, service_words),
        "in advance, a statement of words: the answer with it": score_statements(of_words, own_words),
        "in advance, a statement of words: the service's answer": score_statements(of_words, service_words),
        "median of the training answers: the service's answer": score_statements(
            [usual_words] * len(answers), service_words
        ),
    }
    tokens = [min(limit, count(statement.answer) + 1) for statement in read]  # with the end of sequence
    return {
        "words": errors,
        "lengths": {
            "service": _lengths([a.generated_tokens for a in answers], [a.text for a in answers], limit),
            "alone": _lengths([text.tokens for text in alone], [text.text for text in alone], limit),
            "asked in advance": _lengths(tokens, [statement.answer for statement in read], limit),
        },
        "changes": {
            "alone, from the service's": _change([a.generated_tokens for a in answers], [t.tokens for t in alone]),
            "asked in advance, from alone": _change([text.tokens for text in alone], tokens),
            "same text as the service's, alone": _same([a.text for a in answers], [t.text for t in alone]),
            "same text as alone, asked in advance": _same([t.text for t in alone], [s.answer for s in read]),
        },
        "examples": _examples(prompts, render, texts, read),
    }


def _lengths(tokens: Sequence[int], written: Sequence[str], limit: int) -> dict[str, float]:
    """Compute mean lengths, and the shares of empty answers and of answers that reached the limit."""
    return {
        "tokens_mean": round(statistics.fmean(tokens), 1),
        "tokens_median": statistics.median(tokens),
        "words_mean": round(statistics.fmean(map(words_in, written)), 1),
        "empty": round(statistics.fmean(not words_in(text) for text in written), 4),
        "at_the_limit": round(statistics.fmean(length >= limit for length in tokens), 4),
    }


def _change(before: Sequence[int], after: Sequence[int]) -> dict[str, float]:
    """Compute the mean absolute difference of lengths and the difference of their means, in tokens."""
    differences = [b - a for a, b in zip(before, after, strict=True)]
    return {
        "tokens": round(statistics.fmean(map(abs, differences)), 1),
        "mean_moved_by": round(statistics.fmean(differences), 1),
    }


def _same(before: Sequence[str], after: Sequence[str]) -> float:
    return round(statistics.fmean(a.strip() == b.strip() for a, b in zip(before, after, strict=True)), 4)


def _examples(
    prompts: Sequence[Prompt], render: Render, texts: Mapping[str, GeneratedText], read: Sequence[Statement]
) -> list[dict[str, Any]]:
    """Collect what the model wrote for the paper's example and for the test prompts with the shortest inputs."""
    shortest = sorted(zip(prompts, read, strict=True), key=lambda pair: (pair[0].input_tokens, pair[0].input))
    example = Prompt("", PAPERS_PROMPT, "", 0, 0, 0)
    text = texts[render(example, QUESTIONS["in_advance"])]
    chosen = [(example, read_statement(text.text, text.opening)), *shortest[:EXAMPLES]]
    return [
        {
            "prompt": " / ".join(part for part in (prompt.instruction, prompt.input) if part),
            "stated": statement.words,
            "with_question": texts[render(prompt, QUESTIONS["in_advance"])].text,
            "without": texts[render(prompt, "")].text,
        }
        for prompt, statement in chosen
    ]
