"""An engine whose answers are known: the paced engine of the benchmarks with true answers, and faults of a device."""

import random
from collections.abc import Callable, Sequence

from benchmarks.published_costs import Machine
from benchmarks.scale.paced_engine import PacedEngine
from inference.engine_requests import DecodingRequest
from inference.prompts.request_tokens import NEXT_TURN, ChatEnding, Turn
from request_body import PLAIN, AnswerForm
from scheduling.costs import ServingCurves
from scheduling.kv_memory import KvMemory
from tests.simulation.primitives import world

MODEL = "scripted"
EOS = 0
POISON = "poison"  # a prompt with this word ends its engine
LONGEST = 30
# A step takes a tenth of a second: slow, so that much is in flight at each statement.
CURVES = ServingCurves((1e-5, 0.0, 0.0, 0.01), (1e-7, 1e-4, 0.0, 0.1))


def true_answer(prompt: str) -> str:
    draw = random.Random(prompt)
    return "".join(draw.choice("abcdefgh") for _ in range(draw.randint(1, LONGEST)))


def prompt_of(asked: DecodingRequest) -> str:
    return "".join(map(chr, asked.prompt_ids))


class ScriptedTokens:
    """A tokenizer with a token for each letter."""

    name = MODEL
    context_tokens = vocabulary_size = template_variables = long_prompts = None
    takes_tools = reads_clock = thinks = False

    def encode_request(
        self, instructions: str, input: str, turns: Sequence[Turn], ending: ChatEnding = NEXT_TURN
    ) -> list[int]:
        return self.encode_raw(input)

    def encode_raw(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def answer_form(self, prompt_ids: Sequence[int], begun: str = "") -> AnswerForm:
        return PLAIN

    def decode(self, ids: Sequence[int], *, continues: bool = False) -> str:
        return "".join(map(chr, ids))

    def count(self, text: str) -> int:
        return len(text)


class ScriptedEngine(PacedEngine):
    """Gives each prompt its true answer; fails at poisonous prompts, and whenever `fails` says so."""

    def __init__(self, kv_tokens: int, fails: Callable[[], bool]) -> None:
        super().__init__(Machine(CURVES, KvMemory(kv_tokens, 1)), self._true_ids, max_positions=10_000)
        self._fails = fails

    def _true_ids(self, asked: DecodingRequest) -> tuple[int, ...]:
        ids = (*map(ord, true_answer(prompt_of(asked))), EOS)
        if ids[: len(asked.generated_ids)] != tuple(asked.generated_ids):
            world().fail(f"{asked.id} came with tokens that are not of its answer")
        return ids

    def _decode(self, rows: int, cached: int) -> None:
        super()._decode(rows, cached)
        running = [row.sequence for row in self._rows if not row.ended and row.sequence.id != "trial"]
        if any(POISON in prompt_of(one) for one in running) or (running and self._fails()):
            if len(running) == 1:
                world().failed_alone.add(running[0].id)
            raise RuntimeError("the device failed")
