"""What is guessed of a row's next tokens, and when that pays."""

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.local.guessed_tokens import (
    FIRST_CHANCES,
    LEAST_GAIN,
    MOST_ROWS,
    CopiedText,
    Guessing,
    most_worthwhile,
)

few_tokens = st.lists(st.integers(0, 3), max_size=30)
chances_of_rows = st.lists(
    st.lists(st.floats(0.01, 0.99), max_size=3).map(lambda one: sorted(one, reverse=True)), min_size=1, max_size=3
)


def followed(prompt, answer):
    text = CopiedText(prompt)
    text.follow(answer)
    return text


def test_an_answer_is_expected_to_go_on_as_the_text_that_it_copies():
    assert followed([1, 2, 3, 4, 5, 6], [9, 2, 3]).guess(2) == [4, 5]


def test_two_tokens_tell_the_place_better_than_one_that_came_later():
    assert followed([7, 8, 1, 0, 8, 2, 0], [7, 8]).guess(1) == [1]


def test_the_newest_of_equal_places_counts():
    assert followed([7, 1, 0, 7, 2, 0], [7]).guess(1) == [2]


def test_an_answer_that_repeats_itself_is_expected_to_go_on_so():
    assert followed([9], [4, 5, 4, 5]).guess(5) == [4, 5, 4, 5, 4]


def test_nothing_is_foreseen_in_a_text_without_repetition():
    text = followed([1, 2, 3], [4, 5])
    assert (text.chances(5), text.guess(5)) == ([], [])


def test_the_chances_follow_what_came_after_as_many_copied_tokens():
    text = followed([1, 2, 3, 4, 5, 6, 7, 8, 9], [1])
    assert text.chances(3) == pytest.approx([0.3, 0.3 * 0.5, 0.3 * 0.5 * 0.5])
    text.follow([1, 2, 3, 4])  # one, two and three tokens were followed by the foreseen one
    assert text.chances(1) == [FIRST_CHANCES[2]]
    text.follow([1, 2, 3, 4, 0, 1])  # four were not
    first, second = 0.3 + 0.7 / 3, 0.5 + 0.5 / 3  # then again by (1 - 0.667) / 4
    assert text.chances(2) == pytest.approx([first, first * (second + (1 - second) / 4)])


@settings(deadline=None, derandomize=True)
@given(prompt=few_tokens, answer=few_tokens, cuts=st.lists(st.integers(0, 30)))
def test_a_text_that_is_followed_piece_by_piece_tells_the_same(prompt, answer, cuts):
    pieces, whole = CopiedText(prompt), followed(prompt, answer)
    for cut in [*sorted(cuts), len(answer)]:
        pieces.follow(answer[:cut])
    assert (pieces.guess(9), pieces.chances(9)) == (whole.guess(9), whole.chances(9))


@settings(deadline=None, derandomize=True)
@given(prompt=few_tokens, answer=few_tokens)
def test_what_is_foreseen_stood_behind_the_same_token(prompt, answer):
    text, tokens = followed(prompt, answer), [*prompt, *answer]
    guess = text.guess(40)
    assert len(guess) in (0, 40)
    assert bool(guess) is (bool(tokens) and tokens[-1] in tokens[:-1])
    if guess:
        places = [n for n in range(1, len(tokens)) if tokens[n - 1] == tokens[-1]]
        continuations = [tokens[n:] for n in places]
        assert any((one * 40)[:40] == guess for one in continuations)
    chances = text.chances(40)
    assert all(0 < later <= earlier < 1 for earlier, later in pairwise(chances))


@settings(deadline=None, derandomize=True)
@given(
    chances=chances_of_rows,
    others=st.integers(0, 4),
    line=st.tuples(st.floats(0.1, 2), st.floats(0, 1), st.floats(0, 1)),
)
def test_no_other_numbers_of_guesses_promise_more_tokens_a_second(chances, others, line):
    rows = len(chances) + others

    def promised(counts):
        gained = sum(sum(of_row[:count]) for of_row, count in zip(chances, counts, strict=True))
        seconds = line[0] + line[1] * (rows + sum(counts)) + (line[2] if any(counts) else 0)
        return (rows + gained) / seconds

    chosen = most_worthwhile(chances, rows, line)
    best = max(promised(counts) for counts in product(*(range(len(of_row) + 1) for of_row in chances)))
    plain = promised([0] * len(chances))
    if any(chosen):
        assert promised(chosen) == pytest.approx(best)
        assert promised(chosen) > LEAST_GAIN * plain
    else:
        assert best <= LEAST_GAIN * plain * (1 + 1e-9)


def test_a_likely_row_is_guessed_and_an_unlikely_one_beside_it_is_not():
    # a token costs 1/20 of the pass of ten rows, which promises 10/1.5 = 6.7 tokens a second: worth it from 1/3 on
    assert most_worthwhile([[0.9, 0.81, 0.5], [0.3, 0.1], []], 10, (1.0, 0.05, 0.0)) == [3, 0, 0]


def test_nothing_is_guessed_before_the_first_pass_and_no_more_than_there_is_room_for():
    guessing, text = Guessing(4), followed(range(20), [0, 1, 2, 3, 4, 5, 6, 7])
    assert guessing.guesses([text], [9]) == [[]]
    for tokens in range(1, 9):
        guessing.count(tokens, tokens - 1, 0.05)  # tokens cost nothing
    assert guessing.guesses([text, None, text, text], [9, 0, 2, 0]) == [[8, 9, 10, 11], [], [8, 9], []]
    assert guessing.guesses([text, text], [-1, 9]) == [[], [8, 9, 10, 11]]


def test_guessing_stops_where_a_pass_takes_longer_by_as_much_as_it_has_more_tokens():
    guessing, text = Guessing(8), followed(range(20), [0, 1, 2, 3, 4, 5, 6, 7])
    for n in range(100):
        guessing.count(1 + n % 8, n % 8, 0.05 * (1 + n % 8))
    assert guessing.guesses([text], [9]) == [[]]


def test_nothing_is_guessed_beside_many_rows():
    assert [Guessing(4).begins(rows) for rows in (0, 1, MOST_ROWS, MOST_ROWS + 1)] == [False, True, True, False]
    assert not Guessing(0).begins(1)
