"""What a client asks of its answer beside the text, by the official client, of our engine with the bundled model."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.e2e.whole_service import Up

pytestmark = pytest.mark.timeout(300)

MODEL = "bundled"
MESSAGES: list[Any] = [{"role": "user", "content": "How large is an ant?"}]


class Ant(BaseModel):
    """An answer that the bundled model would never give by itself."""

    size: Literal["small", "large"]
    legs: Literal[6, 8]


@pytest.fixture(scope="module")
def client(up: Up) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{up.url}/v1", api_key=up.key) as client:
        yield client


def test_an_answer_keeps_to_a_schema_in_every_call(client: OpenAI) -> None:
    parsed = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Ant)
    assert isinstance(parsed.choices[0].message.parsed, Ant)
    response = client.responses.parse(model=MODEL, input="How large is an ant?", text_format=Ant)
    assert isinstance(response.output_parsed, Ant)
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, response_format=Ant) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Ant)


def test_a_choice_of_texts_can_be_compared_by_their_log_probabilities(client: OpenAI) -> None:
    texts = ["river cloud", "river river"]
    answer = client.completions.create(model=MODEL, prompt=texts, max_tokens=1, echo=True, logprobs=1)
    for text, choice in zip(texts, answer.choices, strict=True):
        known = choice.logprobs
        assert known is not None
        assert known.tokens is not None
        assert known.token_logprobs is not None
        assert choice.text.startswith(text)
        assert "".join(known.tokens).strip().startswith(text)
        assert known.token_logprobs[0] is None
        assert all(value <= 0 for value in known.token_logprobs[1:])


def test_an_answer_that_ignores_its_end_has_as_many_tokens_as_were_asked_for(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=40, n=2, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 80
    assert [choice.finish_reason for choice in answer.choices] == ["length", "length"]
