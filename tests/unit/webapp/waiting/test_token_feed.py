"""Pieces of an answer, lost, doubled or late, put together: never a wrong text, and what is missing is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webapp.waiting.token_feed import LiveText

ANSWER = "one two three four"


def live(missed: bool = False) -> tuple[LiveText, list[int]]:
    grown: list[int] = []
    text = LiveText("a", lambda: grown.append(1), missed=missed)
    return text, grown


def test_pieces_make_the_text():
    text, grown = live()
    text.add(0, "one")
    text.add(3, " two")
    assert (text.text, text.missed, len(grown)) == ("one two", False, 2)


def test_what_comes_behind_a_gap_waits_for_the_whole():
    text, grown = live()
    text.add(3, " two")
    assert (text.text, text.missed, grown) == ("", True, [])
    text.add(0, "one two three")
    assert (text.text, text.missed, len(grown)) == ("one two three", False, 1)


def test_nothing_is_added_twice():
    text, grown = live()
    text.add(0, "one")
    text.add(0, "one")
    text.add(1, "ne")
    assert (text.text, len(grown)) == ("one", 1)


@pytest.mark.parametrize("contradiction", [(0, "two"), (2, "x and on"), (0, "one way")])
def test_after_a_contradiction_the_stored_answer_decides(contradiction):
    text, _ = live()
    text.add(0, "one two")
    text.add(*contradiction)
    text.add(7, " three")
    assert text.text == "one two"


@given(st.lists(st.tuples(st.integers(0, len(ANSWER)), st.integers(0, len(ANSWER)))))
def test_whatever_is_lost_the_text_is_a_beginning_of_the_answer(cuts):
    text, _ = live(missed=True)
    for start, end in cuts:
        text.add(start, ANSWER[start:end])
    assert ANSWER.startswith(text.text)
    text.add(0, ANSWER)
    assert text.text == ANSWER
