"""An engine whose answers are known: it gives each prompt its true tokens, at its own pace, within its own memory."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from inference.engine_errors import OutOfMemory
from inference.engine_requests import DecodingRequest, FinishedRow, FinishReason, Generated, RunFigures
from inference.prompts.request_tokens import NEXT_TURN, ChatEnding, Turn
from request_body import PLAIN, AnswerForm
from tests.simulation.primitives import world

MODEL = "scripted"
EOS = 0
POISON = "poison"  # a prompt with this word ends its engine
LONGEST = 30


def true_answer(prompt: str) -> str:
    draw = random.Random(prompt)
    return "".join(draw.choice("abcdefgh") for _ in range(draw.randint(1, LONGEST)))


class ScriptedTokens:
    """A tokenizer with a token for each letter."""

    def encode_request(
        self, instructions: str, input: str, turns: Sequence[Turn], ending: ChatEnding = NEXT_TURN
    ) -> list[int]:
        return [ord(letter) for letter in input]

    name = MODEL
    context_tokens = vocabulary_size = template_variables = long_prompts = None
    takes_tools = reads_clock = thinks = False

    def encode_raw(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def answer_form(self, prompt_ids: Sequence[int], begun: str = "") -> AnswerForm:
        return PLAIN

    def decode(self, ids: Sequence[int], *, continues: bool = False) -> str:
        return "".join(map(chr, ids))

    def count(self, text: str) -> int:
        return len(text)


@dataclass
class Row:
    """A running row with the tokens that it has."""

    asked: DecodingRequest
    ids: list[int]

    @property
    def prompt(self) -> str:
        return "".join(map(chr, self.asked.prompt_ids))

    def grow(self) -> FinishedRow | None:
        answer = true_answer(self.prompt)
        self.ids.append(ord(answer[len(self.ids)]) if len(self.ids) < len(answer) else EOS)
        if self.ids[-1] == EOS:
            return self.finished("eos")
        return self.finished("limit") if len(self.ids) == self.asked.limit else None

    def finished(self, reason: FinishReason) -> FinishedRow:
        return FinishedRow(self.asked.id, tuple(self.ids), reason)


class ScriptedEngine:
    """An engine as `inference.serving_engine` describes it; `step_s` and memory are given, `fails` draws its faults."""

    max_positions = 10_000
    prefilled_layers = 0

    def __init__(self, budget_tokens: int, step_s: float, fails: Callable[[], bool]) -> None:
        self._budget, self._step_s, self._fails = budget_tokens, step_s, fails
        self._rows: dict[str, Row] = {}
        self.figures = RunFigures()

    @property
    def rows(self) -> dict[str, int]:
        return {name: len(row.ids) for name, row in self._rows.items()}

    @property
    def kv_bytes(self) -> int:
        lengths = [len(row.asked.prompt_ids) + len(row.ids) for row in self._rows.values()]
        return len(lengths) * max(lengths, default=0)

    def insert(self, sequences: Sequence[Any]) -> None:
        before = dict(self._rows)
        self._rows.update((one.id, Row(one, list(one.generated_ids))) for one in sequences)
        if (needed := self.kv_bytes) > self._budget:
            self._rows = before
            raise OutOfMemory(needed, self._budget)
        self.figures = self.figures if before else RunFigures()
        for row in (self._rows[one.id] for one in sequences):
            if not true_answer(row.prompt).startswith("".join(map(chr, row.ids))):
                world().fail(f"{row.asked.id} came with tokens that are not of its answer")

    def step(self) -> list[FinishedRow]:
        world().wait(None, self._step_s)
        if any(POISON in row.prompt for row in self._rows.values()):
            raise self._failure("a poisonous prompt")
        if self._rows and self._fails():
            raise self._failure("the device failed")
        if (needed := self.kv_bytes + len(self._rows)) > self._budget:
            raise OutOfMemory(needed, self._budget)
        ended = [done for row in self._rows.values() if (done := row.grow()) is not None]
        self.figures = replace(self.figures, iterations=self.figures.iterations + 1)
        for one in ended:
            del self._rows[one.id]
        return ended

    def _failure(self, words: str) -> RuntimeError:
        if len(self._rows) == 1:
            world().failed_alone.update(self._rows)
        return RuntimeError(words)

    def run(
        self,
        sequences: Sequence[Any],
        iteration_limit: int | None = None,
        on_progress: Callable[[list[FinishedRow]], None] = lambda rows: None,
    ) -> tuple[list[FinishedRow], RunFigures]:
        self._rows.clear()
        if any(one.id == "trial" for one in sequences):
            return [FinishedRow("trial", (1,), "limit")], RunFigures()
        self.insert(sequences)
        results = {one.id: FinishedRow(one.id, one.generated_ids, "removed") for one in sequences}
        while self._rows and (iteration_limit is None or self.figures.iterations < iteration_limit):
            ended = self.step()
            results.update((row.id, row) for row in ended)
            on_progress(ended)
        results.update((name, row.finished("unfinished")) for name, row in self._rows.items())
        self._rows.clear()
        return [results[one.id] for one in sequences], self.figures

    def generated(self, since: Mapping[str, int]) -> dict[str, Generated]:
        running = {name: self._rows[name] for name in since if name in self._rows}
        return {name: Generated(tuple(row.ids[since[name] :]), None, ()) for name, row in running.items()}

    def remove(self, sequence_id: str) -> FinishedRow | None:
        row = self._rows.pop(sequence_id, None)
        return None if row is None else row.finished("removed")

    def preempt(self, sequence_id: str) -> DecodingRequest:
        row = self._rows.pop(sequence_id)
        return replace(row.asked, generated_ids=tuple(row.ids))
