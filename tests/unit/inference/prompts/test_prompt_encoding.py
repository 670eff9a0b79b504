"""Long prompts are encoded in a process of their own: the same ids, and an early end for what is far too long."""

import time

import pytest
from jinja2 import TemplateError

from inference.prompts.model_prompt import LONG_CHARACTERS, ModelPrompt
from inference.prompts.prompt_format import load_prompt_format
from request_body import RequestBody, StoredTool, StoredTurn
from settings import BUNDLED_MODEL

TOKENS = load_prompt_format(str(BUNDLED_MODEL))
CHAT = RequestBody(
    messages=(
        StoredTurn(role="user", content="one two " * LONG_CHARACTERS),
        StoredTurn(role="assistant", content="three"),
        StoredTurn(role="user", content="four"),
    )
)


@pytest.mark.parametrize(
    "prompt",
    [
        ModelPrompt("Repeat.", "word " * LONG_CHARACTERS),
        ModelPrompt("", "<eos> 😀" * LONG_CHARACTERS, RequestBody(raw=True)),
        ModelPrompt("", "user: one two " * LONG_CHARACTERS, CHAT),
    ],
    ids=["texts", "raw", "chat"],
)
def test_a_long_prompt_has_the_ids_that_it_has_here(prompt: ModelPrompt):
    assert prompt.characters > LONG_CHARACTERS
    assert prompt.encode(TOKENS) == prompt.encode_here(TOKENS)


@pytest.mark.parametrize("text", ["😀", " ", "a", "\u0301", "word ", "<eos>"])
def test_a_prompt_that_is_encoded_here_delays_others_by_some_milliseconds(text: str):
    prompt = ModelPrompt("", (text * LONG_CHARACTERS)[:LONG_CHARACTERS])
    prompt.encode(TOKENS)
    began = time.process_time()
    prompt.encode(TOKENS)
    assert time.process_time() - began < 0.15  # 3 to 22 ms; 20,000 emojis took 180


@pytest.mark.parametrize("text", ["😀", " ", "a", "\u0301"])
def test_a_prompt_far_beyond_its_limit_is_not_encoded_to_its_end(text: str):
    ids = ModelPrompt("", text * 1_000_000).encode(TOKENS, 1000)
    assert 1000 < len(ids) < 100_000


def test_a_long_prompt_that_the_template_refuses_is_refused():
    tools = (StoredTool(name="f", description="x" * 2 * LONG_CHARACTERS),)
    with pytest.raises(TemplateError, match="tools"):
        ModelPrompt("", "", RequestBody(messages=CHAT.messages[1:], tools=tools)).encode(TOKENS)
