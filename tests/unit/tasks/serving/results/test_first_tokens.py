"""The instants of first tokens, seen in a real engine after each step."""

from dataclasses import replace

from tasks.serving.results.first_tokens import FirstTokens
from tests.unit.tasks.serving.tiny_engine import TinyEngine, row


def test_each_row_has_the_instant_at_which_its_first_token_was_seen() -> None:
    engine = TinyEngine()
    first = FirstTokens(engine)
    for at, name in ((1.0, "a"), (2.0, "b")):
        engine.insert([row(name, 9)])  # the prefill gives the first one a token, the other one's prompt takes two steps
        first.expect([row(name, 9)])
        first.look(at)
    for at in (3.0, 4.0, 5.0):
        first.look(at, engine.step())
    assert [first.take(name) for name in ("a", "b", "a", "c")] == [1.0, 4.0, None, None]


def test_a_row_that_ends_with_its_first_token_has_one() -> None:
    engine = TinyEngine()
    first = FirstTokens(engine)
    engine.insert([row("a", 1)])
    first.expect([row("a", 1)])
    first.look(2.0, engine.step())
    assert first.take("a") == 2.0


def test_a_row_without_a_token_and_one_that_was_resumed_have_none() -> None:
    engine = TinyEngine()
    first = FirstTokens(engine)
    resumed = replace(row("a", 9), generated_ids=(5,))
    first.expect([resumed, row("waits")])
    engine.insert([resumed])
    first.look(1.0)
    assert (first.take("a"), first.take("waits")) == (None, None)
