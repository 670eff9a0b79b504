"""Conversations that are shortened until they fit."""

from typing import cast

from inference.isolated_calls import IsolatedCalls
from inference.prompts.model_prompt import LONG_CHARACTERS, ModelPrompt
from inference.prompts.prompt_format import PromptFormat
from protocol.limits.prompt_limits import PromptLimits
from protocol.responses.conversation import fitting
from request_body import StoredTurn
from tests.unit.protocol.limits.test_prompt_limits import WORDS


class CountedByCaller:
    """Calls in processes of their own: one token for each character."""

    def __init__(self) -> None:
        self.callers = list[str]()

    def call(self, text: str, cpu_s: float, caller: str = "") -> str:
        self.callers.append(caller)
        return str([0] * len(text))


def test_each_attempt_to_shorten_a_conversation_waits_for_those_of_its_own_tenant_alone() -> None:
    calls = CountedByCaller()
    prompt_format = PromptFormat("words", WORDS.to_str(), None, long_prompts=cast(IsolatedCalls, calls))
    limits = PromptLimits("words", prompt_format, max_prompt_tokens=4 * LONG_CHARACTERS, max_output_tokens=9)
    turns = [StoredTurn(role="user", content="x" * 2 * LONG_CHARACTERS) for _ in range(8)]
    left = fitting(limits, turns, lambda some: ModelPrompt("", "".join(one.content for one in some)), "acme")
    assert len(left) == 1
    assert set(calls.callers) == {"acme"}
    assert len(calls.callers) == 3
