"""Rows that repeat themselves are found as brute force finds them, and ended; what a prompt asks for is not."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inference.engine_requests import JsonFormat
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.tokens.repetition import (
    CHECKED_TOKENS,
    LEAST_REPEATED,
    LONGEST_PERIOD,
    LoopStops,
    has_twice,
    repeated_period,
)
from request_body import AnswerForm, Sampling
from tests.unit.inference.foreseen_tokens import Foreseen
from tests.unit.inference.local.test_engine_guesses import ends
from tests.unit.inference.tiny_models import AMPLE, drain, known


def by_brute_force(tokens: Sequence[int]) -> int | None:
    for period in range(1, LONGEST_PERIOD + 1):
        length = max(LEAST_REPEATED + period, 2 * period)
        if len(tokens) >= length and all(
            tokens[n] == tokens[n - period] for n in range(len(tokens) - length + period, len(tokens))
        ):
            return period
    return None


def twice_by_brute_force(tokens: Sequence[int], repeated: Sequence[int]) -> bool:
    turns = [[*repeated[n:], *repeated[:n]] * 2 for n in range(len(repeated))]
    return any([*tokens[at : at + 2 * len(repeated)]] in turns for at in range(len(tokens)))


few = st.integers(0, 2)
units = st.lists(few, min_size=1, max_size=LONGEST_PERIOD + 2)


@given(st.lists(few, max_size=40), units, st.integers(0, 5 * LONGEST_PERIOD), st.lists(few, max_size=2))
@example([], [*range(LONGEST_PERIOD)], 2 * LONGEST_PERIOD, [])
@example([], [*range(LONGEST_PERIOD)], 2 * LONGEST_PERIOD - 1, [])
@example([], [*range(LONGEST_PERIOD + 1)], 2 * (LONGEST_PERIOD + 1), [])
@example([], [0], LEAST_REPEATED + 1, [])
@example([], [0], LEAST_REPEATED, [])
def test_a_period_is_found_as_brute_force_finds_it(
    before: list[int], unit: list[int], length: int, behind: list[int]
) -> None:
    tokens = [*before, *islice(cycle(unit), length), *behind]
    assert repeated_period(tokens) == by_brute_force(tokens)
    tail = tokens[-2 * LONGEST_PERIOD :]  # what a row looks at
    assert repeated_period(tail) == by_brute_force(tokens)


@given(st.lists(few, max_size=12), st.lists(few, min_size=1, max_size=4))
def test_what_stands_twice_in_a_row_is_found_as_brute_force_finds_it(tokens: list[int], repeated: list[int]) -> None:
    assert has_twice(tokens, repeated) is twice_by_brute_force(tokens, repeated)


LIMIT = 300


def looping(**options):
    """Rows of a model without an end that loop after a while, and what each generates up to its limit."""
    loaded = replace(known("bundled").loaded, eos_ids=frozenset())
    rows = [replace(one.sequence(str(n), limit=LIMIT), **options) for n, one in enumerate(known("bundled").pool)]
    return loaded, rows, {row.id: row.generated_ids for row in Engine(loaded, AMPLE).run(rows)[0]}


def expected_end(row, generated) -> int | None:
    lengths = range(CHECKED_TOKENS, min(row.limit, len(generated)), CHECKED_TOKENS)
    for length in lengths:
        period = by_brute_force(generated[:length])
        if period and not twice_by_brute_force(row.prompt_ids, generated[length - period : length]):
            return length
    return None


def test_rows_end_where_they_have_repeated_themselves_however_they_are_computed() -> None:
    loaded, rows, unbound = looping()
    stops = LoopStops()
    found = {row.id: row for row in Engine(loaded, AMPLE, EngineOptions(loop_stops=stops)).run(rows)[0]}
    ended = {row.id: expected_end(row, unbound[row.id]) for row in rows}
    assert any(ended.values())
    for row in rows:
        length = ended[row.id] or len(unbound[row.id])
        assert found[row.id].generated_ids == unbound[row.id][:length]
        assert found[row.id].reason == ("loop" if ended[row.id] else "limit")
    lengths = [length for length in ended.values() if length]
    assert (stops.rows, stops.saved_tokens) == (len(lengths), sum(LIMIT - length for length in lengths))
    foreseen = [(*row.prompt_ids, *unbound[row.id]) for row in rows]
    guessing = Engine(loaded, AMPLE, EngineOptions(guessing=Foreseen(foreseen), loop_stops=LoopStops()))
    guessing.insert(rows)
    assert ends(drain(guessing)) == ends(found)
    engine = Engine(loaded, AMPLE, EngineOptions(loop_stops=LoopStops()))
    engine.insert(rows)
    for _ in range(37):
        engine.step()
    resumed = [engine.preempt(row.id) for row in rows]
    engine.insert(resumed)
    assert ends(drain(engine)) == ends(found)


@pytest.mark.parametrize("tier", ["flex", "off_peak"])
def test_a_parked_row_leaves_with_its_tokens_and_goes_on_to_its_limit_as_background_work(tier) -> None:
    loaded, rows, unbound = looping()
    [row, *_] = [row for row in rows if expected_end(row, unbound[row.id])]
    stops = LoopStops(parks=True)
    engine = Engine(loaded, AMPLE, EngineOptions(loop_stops=stops))
    engine.insert([row])
    parked = drain(engine)[row.id]
    length = expected_end(row, unbound[row.id])
    assert (parked.reason, parked.generated_ids) == ("parked", unbound[row.id][:length])
    assert (stops.rows, stops.saved_tokens) == (1, 0)
    engine.insert([replace(row, generated_ids=parked.generated_ids, tier=tier)])
    assert drain(engine)[row.id].generated_ids == unbound[row.id]
    assert stops.rows == 1


@pytest.mark.parametrize(
    "options",
    [{"sampling": Sampling(ignore_eos=True)}, {"format": JsonFormat(pattern=r"(?s:.*)")}],
    ids=["ignores the end", "in a format"],
)
def test_rows_that_go_on_to_their_limits_or_have_a_format_are_left_alone(options) -> None:
    loaded, rows = known("bundled").loaded, [known("bundled").pool[0].sequence("a", limit=200, **options)]
    stops = LoopStops()
    [row], _ = Engine(loaded, AMPLE, EngineOptions(loop_stops=stops)).run(rows)
    assert row.reason != "loop"
    assert stops.rows == 0


def test_a_row_does_not_end_before_the_tokens_that_it_must_have() -> None:
    loaded, rows, _ = looping(sampling=Sampling(min_tokens=200))
    found, _ = Engine(loaded, AMPLE, EngineOptions(loop_stops=LoopStops())).run(rows)
    assert {row.reason for row in found} == {"loop", "limit"}
    assert all(len(row.generated_ids) >= 200 for row in found)


def test_a_loop_within_thinking_is_left_to_the_thinkings_budget() -> None:
    form = AnswerForm(opening="<think>", closing="</think>", opened=True)
    loaded = replace(known("bundled").loaded, eos_ids=frozenset())
    asked = known("bundled").pool[0].sequence("a", limit=400)
    lengths = []
    for most in (None, 300, 400, 0):  # one that is never ended, one that is, one beyond the limit, one that is over
        row = replace(asked, answer_form=form, sampling=Sampling(thinking_token_budget=most))
        [found], _ = Engine(loaded, AMPLE, EngineOptions(loop_stops=LoopStops())).run([row])
        assert found.reason in ("loop", "limit")
        lengths.append(len(found.generated_ids))
    assert lengths[0] == lengths[2] < 300 < lengths[1]
    assert lengths[3] < 300
