"""What a model states in advance, and what the statement does to the answer behind it (Tables 1 and 2, section 3.1)."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.perception.generated_texts import GeneratedText
from benchmarks.perception.stated_words import Statement, read_statement, score_statements, words_in
from benchmarks.real_lengths.real_answers import RealAnswer
from learning.predictors.language_model import STATEMENT_TOKENS
from learning.predictors.length_predictor import Prompt
from learning.predictors.perception import QUESTIONS

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
