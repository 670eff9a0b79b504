"""/v1/messages over the whole service with the bundled model, read by the official `anthropic` client."""

from collections.abc import Iterator

import pytest
from anthropic import Anthropic
from openai import OpenAI

from inference.toy.toy_applications import toy_requests
from tests.e2e.whole_service import Up

pytestmark = pytest.mark.timeout(180)

REQUEST = next(one for one in toy_requests(100, seed=3, median_words=16.0) if one.application == "double")
DOUBLE, WORDS = REQUEST.instruction, REQUEST.input


@pytest.fixture
def claude(up: Up) -> Iterator[Anthropic]:
    """The official client, which sends the key as `x-api-key`."""
    with Anthropic(base_url=up.url, api_key=up.key, max_retries=0) as client:
        yield client


def test_a_message_and_its_stream_are_the_answer_to_the_same_chat(up: Up, claude: Anthropic) -> None:
    with OpenAI(base_url=f"{up.url}/v1", api_key=up.key, max_retries=0) as client:
        chat = client.chat.completions.create(
            model="bundled",
            messages=[{"role": "system", "content": DOUBLE}, {"role": "user", "content": WORDS}],
        )
    said = chat.choices[0].message.content
    message = claude.messages.create(
        model="bundled", max_tokens=500, system=DOUBLE, messages=[{"role": "user", "content": WORDS}]
    )
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": said}]
    assert message.stop_reason == "end_turn"
    with claude.messages.stream(
        model="bundled", max_tokens=500, system=DOUBLE, messages=[{"role": "user", "content": WORDS}]
    ) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(pieces) == said
    assert len(pieces) > 1
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", message.usage.output_tokens)


def test_a_message_ends_at_its_limit_and_at_its_stop_sequence(claude: Anthropic) -> None:
    cut = claude.messages.create(
        model="bundled", max_tokens=2, system=DOUBLE, messages=[{"role": "user", "content": WORDS}]
    )
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 2)
    word = WORDS.split()[1]
    stopped = claude.messages.create(
        model="bundled",
        max_tokens=500,
        system=DOUBLE,
        messages=[{"role": "user", "content": WORDS}],
        stop_sequences=["never said", word],
    )
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", word)
