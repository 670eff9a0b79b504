"""Tokens of rows that somebody reads: passed on from the first to the last step, and nothing for other rows."""

from itertools import pairwise

from inference.answer_text import GrowingText
from tasks.serving.batches.continuous_batches import ContinuousBatches
from tasks.serving.results.engine_events import EngineEvent, RowEnded
from tasks.serving.results.live_tokens import LiveRows, LiveTexts, StepTokens
from tests.unit.tasks.serving.tiny_engine import TinyEngine, job, row


def letters(ids):
    return "".join(chr(ord("a") + one) for one in ids)


class Setting:
    """An engine with rows that join, and what is passed on after each step."""

    def __init__(self, *rows: str, streamed: tuple[str, ...] = ()) -> None:
        self.engine = TinyEngine()
        self.steps: list[StepTokens] = []
        self.live = LiveRows(self.steps.append)
        self.events: list[EngineEvent] = []
        self.batches = ContinuousBatches(self.engine, lambda *events: self.events.extend(events))
        self.live.begin(streamed)
        self.batches.admit(job(1, *(row(one, limit=6) for one in rows), joins=True))
        self.live.collect(self.engine)

    def step(self) -> None:
        self.batches.step()
        self.live.collect(self.engine)

    def to_the_end(self) -> None:
        while self.batches.open:
            self.step()

    def answer(self, id: str) -> tuple[int, ...]:
        (ended,) = (event.ended for event in self.events if isinstance(event, RowEnded) and event.ended.id == id)
        return ended.generated_ids


def test_a_row_that_is_streamed_is_passed_on_from_its_first_token():
    setting = Setting("a", "b", streamed=("a",))
    assert [len(step.generated["a"].ids) for step in setting.steps] == [1]
    setting.to_the_end()
    passed = [one for step in setting.steps if "a" in step.generated for one in step.generated["a"].ids]
    assert tuple(passed) == setting.answer("a")[: len(passed)]
    assert len(passed) == 5  # the last token ends the row, whose answer is stored then
    assert setting.steps[0].begun == {"a"}
    assert setting.steps[-1].gone == {"a"}
    assert all("b" not in step.generated for step in setting.steps)


def test_while_nobody_reads_nothing_is_passed_on():
    setting = Setting("a", "b")
    setting.to_the_end()
    assert setting.steps == []


def test_a_row_that_is_asked_for_is_passed_on_whole_and_then_further():
    setting = Setting("a")
    setting.step()
    setting.live.ask(["a", "elsewhere"])
    setting.step()
    setting.step()
    assert [len(step.generated["a"].ids) for step in setting.steps] == [3, 1]
    assert setting.steps[0].begun == setting.steps[0].wanted == {"a"}


def test_a_row_that_begins_again_is_passed_on_from_its_beginning():
    setting = Setting("a", streamed=("a",))
    setting.step()
    back = setting.engine.preempt("a")
    setting.live.begin(["a"])
    setting.engine.insert([back])
    setting.live.collect(setting.engine)
    assert setting.steps[-1].begun == {"a"}
    assert setting.steps[-1].generated["a"].ids[:2] == back.generated_ids


def test_pieces_follow_each_other_and_the_whole_comes_again_when_it_is_asked_for():
    setting, texts = Setting("a", streamed=("a",)), LiveTexts(letters)
    for _ in range(3):
        setting.step()
    setting.live.ask(["a"])
    setting.to_the_end()
    pieces = [piece for step in setting.steps for piece in texts.add(step)]
    starts = [start for _, start, _ in pieces]
    assert starts == [0, 1, 2, 3, 0]
    assert all(before[1] + len(before[2]) == after[1] for before, after in pairwise(pieces[:-1]))
    growing = GrowingText(letters)
    growing.add_ids(setting.answer("a")[:5])
    assert pieces[-1] == ("a", 0, growing.text)
