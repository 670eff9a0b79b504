"""Statements of a length are read as the paper's Table 1 shows them, and scored as in its Table 2."""

import pytest

from benchmarks.perception.changed_answers import read_statement, score_statements, words_in


@pytest.mark.parametrize(
    ("text", "words", "of_words", "answer"),
    [
        ("Estimated response length: 60 words.\nSure, here's one.", 60, True, "Sure, here's one."),
        ("225\n\nHere is a question.", 225, True, "Here is a question."),
        ("101", 101, True, ""),
        ("There are 3 apples.\nHow many remain?", 3, False, "There are 3 apples.\nHow many remain?"),
        ("Le bus est loin.\n\nThe answer is 12 words.", 12, False, "Le bus est loin.\n\nThe answer is 12 words."),
        ("What a delightful question!\n", None, False, "What a delightful question!"),
    ],
)
def test_an_answer_begins_behind_a_first_line_that_states_its_words(
    text: str, words: int | None, of_words: bool, answer: str
) -> None:
    statement = read_statement(text, opening=text)
    assert (statement.words, statement.of_words, statement.answer) == (words, of_words, answer)


def test_a_number_that_comes_after_the_opening_is_not_a_statement() -> None:
    statement = read_statement("Sure, here it is.\nThere are 7 apples.", opening="Sure, here")
    assert (statement.words, statement.answer) == (None, "Sure, here it is.\nThere are 7 apples.")


def test_statements_are_scored_by_their_errors_and_prompts_without_one_count_as_failures() -> None:
    scores = score_statements([60, None, 100, 400], [10, 5, 151, 100])  # errors 50, none, 51, 300
    assert scores["mae"] == pytest.approx((50 + 51 + 300) / 3, abs=1e-4)
    assert scores["median_error"] == 51
    assert scores["acc_50"] == pytest.approx(1 / 3, abs=1e-4)
    assert scores["acc_100"] == pytest.approx(2 / 3, abs=1e-4)
    assert (scores["asked"], scores["n"], scores["failures"]) == (4, 3, 0.25)


def test_without_any_statement_there_is_no_error_to_tell() -> None:
    assert score_statements([None, None], [10, 20]) == {"asked": 2, "failures": 1.0}


def test_characters_of_chinese_count_as_words() -> None:
    assert words_in("two words") == 2
    assert words_in("你好 world") == 3
