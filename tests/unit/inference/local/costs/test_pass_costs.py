"""What passes take by their tokens, and how much of prompts fits in one."""

import math

import pytest

from inference.local.costs.pass_costs import (
    FEWEST_PREFILLED,
    LONGEST_GAP,
    MOST_PREFILLED,
    SEVERAL_SHARE,
    TWICE_SHARE,
    PassCosts,
)

NO_LINE = (math.nan, math.nan, math.nan)


def test_passes_tell_what_a_token_costs_and_what_several_tokens_of_a_row_do():
    costs = PassCosts()
    for n in range(400):
        guessed = 0 if n % 3 else n % 7 + 1
        tokens = 4 + n % 5 + guessed
        costs.count(tokens, guessed > 0, 0.03 + 0.002 * tokens + (0.004 if guessed else 0))
    base_s, token_s, several_s = costs.line() or NO_LINE
    assert base_s + 6 * token_s == pytest.approx(0.03 + 0.002 * 6, rel=0.02)
    assert base_s + 10 * token_s + several_s == pytest.approx(0.03 + 0.002 * 10 + 0.004, rel=0.02)
    assert token_s == pytest.approx(0.002, rel=0.15)


def test_before_anything_was_guessed_a_pass_of_twice_the_tokens_is_expected_to_cost_two_fifths_more():
    costs = PassCosts()
    assert costs.line() is None
    for _ in range(50):
        costs.count(16, False, 0.1)
    base_s, token_s, several_s = costs.line() or NO_LINE
    assert base_s + 16 * token_s == pytest.approx(0.1)
    assert base_s + 32 * token_s == pytest.approx(0.1 * (1 + TWICE_SHARE))
    assert several_s == pytest.approx(0.1 * SEVERAL_SHARE)


def test_costly_passes_of_long_ago_no_longer_count():
    costs = PassCosts()
    for _ in range(20):
        costs.count(9, True, 5.0)
    for _ in range(2000):
        costs.count(1, False, 0.05)
    base_s, token_s, several_s = costs.line() or NO_LINE
    assert base_s + 9 * token_s + several_s < 0.05 * 6


def costing(base_s, token_s, rows=(4, 12)):
    costs = PassCosts()
    for n in range(400):
        tokens = rows[0] + n % (rows[1] - rows[0])
        costs.count(tokens, False, base_s + token_s * tokens)
    return costs


def test_a_pass_has_room_for_as_much_of_prompts_as_keeps_rows_waiting_thrice_as_long():
    costs = costing(0.04, 0.002)
    base_s, token_s, several_s = costs.line() or NO_LINE
    room = costs.room(8)
    assert base_s + token_s * (8 + room) + several_s == pytest.approx(LONGEST_GAP * (base_s + token_s * 8), rel=0.01)


def test_a_pass_has_room_for_a_little_of_prompts_whatever_it_takes_and_for_no_more_than_pays():
    assert PassCosts().room(8) == FEWEST_PREFILLED
    assert costing(0.0, 0.002).room(4) == FEWEST_PREFILLED
    assert costing(0.04, 0.0).room(4) == MOST_PREFILLED


def test_a_pass_costs_its_tokens_their_share_of_it_without_what_is_fixed():
    costs = costing(0.04, 0.002)
    base_s, token_s, _ = costs.line() or NO_LINE
    assert costs.share(30, 40) == pytest.approx(30 * token_s / (base_s + 40 * token_s))
    assert 0.4 < costs.share(30, 40) < 0.6
    assert PassCosts().share(30, 40) == 0.75
