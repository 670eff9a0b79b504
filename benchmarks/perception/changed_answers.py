"""What a model states in advance, and what the statement does to the answer behind it (Tables 1 and 2, section 3.1)."""

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
# A first line that states a length, and is not the beginning of an answer: a number alone, or so many words.
OF_WORDS = re.compile(r"^\W*\d+\W*$|\d+\W*words?\b|\bwords?\b.*\d", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Statement:
    """What a model said that was asked for a length in advance: its first number, None without one, and its answer.

    `of_words`: the first line has the number and says that it counts words, or nothing else; the answer is what follows
    it. Any other number may mean anything, and the answer is the whole text.
    """

    words: int | None
    of_words: bool
    answer: str


def read_statement(text: str, opening: str) -> Statement:
    """The statement in a text; its number must stand in the `opening`, which is how the text begins."""
    number = NUMBER.search(opening)
    if number is None:
        return Statement(None, of_words=False, answer=text.strip())
    first_line, _, rest = text.lstrip().partition("\n")
    of_words = NUMBER.search(first_line) is not None and OF_WORDS.search(first_line) is not None
    return Statement(min(int(number.group()), MOST_NUMBER), of_words, (rest if of_words else text).strip())


def words_in(text: str) -> int:
    """How many words a text has."""
    return len(WORD.findall(text))


def score_statements(stated: Sequence[int | None], written: Sequence[int]) -> dict[str, float]:
    """Scores of the numbers against what was written, in the same unit; `failures` is the share without a number."""
    pairs = [(number, length) for number, length in zip(stated, written, strict=True) if number is not None]
    failures = {"asked": len(stated), "failures": round(1 - len(pairs) / len(stated), 4)}
    if not pairs:
        return failures
    median_error = float(np.median([abs(number - length) for number, length in pairs]))
    scores = score([Prediction(number, number) for number, _ in pairs], [length for _, length in pairs]).as_dict()
    shown = {name: scores[name] for name in ("n", "mae", "acc_50", "acc_100", "tau")}
    return failures | {"median_error": median_error} | shown


PAPERS_PROMPT = "Create a fun math question for children."  # of the paper's Table 1
EXAMPLES = 4  # of the test prompts that are shown in full beside the paper's, those with the shortest inputs

Render = Callable[[Prompt, str], str]


def prompts_to_answer(test: Sequence[Prompt], render: Render, limit: int) -> dict[str, int]:
    """Limits by rendered prompt, each prompt without and with the question, the paper's example first.

    A statement has tokens of its own, so that the answer behind it may be as long as the one without.
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
    """Errors of the statements in words, and the answers behind them beside those without a question.

    `service` are the answers that the service gives; `alone` those to the prompt as predictors render it, without the
    question. `usual_words` is the baseline, a number that is stated for every prompt.
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
    """Mean lengths, and the shares of empty answers and of those that reached the limit."""
    return {
        "tokens_mean": round(statistics.fmean(tokens), 1),
        "tokens_median": statistics.median(tokens),
        "words_mean": round(statistics.fmean(map(words_in, written)), 1),
        "empty": round(statistics.fmean(not words_in(text) for text in written), 4),
        "at_the_limit": round(statistics.fmean(length >= limit for length in tokens), 4),
    }


def _change(before: Sequence[int], after: Sequence[int]) -> dict[str, float]:
    """By how many tokens lengths differ, on average and in their means."""
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
    """The paper's example and the test prompts with the shortest inputs, with all that the model wrote."""
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
