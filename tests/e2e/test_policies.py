"""Every policy over the whole service says what the model says to each request alone, token for token.

With cached beginnings of prompts and without, with guessed tokens and without.
"""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from cli.api_client import Client, output_text
from inference.prompts.prompt_format import load_prompt_format
from inference.toy.toy_applications import ToyRequest, toy_requests
from scheduling.sharing.policy_factory import POLICIES
from settings import BUNDLED_MODEL
from tests.e2e.whole_service import MAGNUS, Up, eventually, running_up

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

FIRST = toy_requests(16, seed=5, median_words=20.0)
# those of the same application once more with a longer input, so that the prompt's beginning is in the cache
FURTHER = [replace(request, input=f"{request.input} cat bread shirt head sun") for request in FIRST]
CONTINUOUS = {"baton", "ccb", "fusion"}  # batches that run to completion use no cached beginnings


@pytest.fixture(scope="module")
def said_alone() -> dict[ToyRequest, tuple[str, int]]:
    """Text and number of tokens of each request's answer by `model.generate`, one after the other."""
    model = AutoModelForCausalLM.from_pretrained(BUNDLED_MODEL, dtype=torch.float32)
    prompts = load_prompt_format(str(BUNDLED_MODEL))
    answers = {}
    for request in FIRST + FURTHER:
        prompt = torch.tensor([prompts.encode(request.instruction, request.input)])
        generated = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=300, do_sample=False)[
            0, prompt.shape[1] :
        ].tolist()
        answers[request] = prompts.decode(generated), len(generated)
    return answers


@pytest.fixture(
    scope="module",
    params=[*product((True, False), repeat=2)],
    ids=lambda ways: f"cache {'on' if ways[0] else 'off'}, {'guessed' if ways[1] else 'not guessed'}",
)
def service(request: pytest.FixtureRequest) -> Iterator[tuple[Up, bool, bool]]:
    """A service with these settings, whether it has a prefix cache, and whether it guesses."""
    cached, guessed = request.param
    with running_up(MAGNUS_PARAMETERS=f"prefix_cache={cached},guess_tokens={16 if guessed else 0}") as up:
        yield up, cached, guessed


@pytest.mark.parametrize("policy", sorted(POLICIES.keys() - {"vsq"}))  # vsq is vs on a quantized model
def test_answers_are_the_same_under_every_policy(
    service: tuple[Up, bool, bool], policy: str, said_alone: dict[ToyRequest, tuple[str, int]]
) -> None:
    up, cached, _ = service
    subprocess.run([MAGNUS, "policy", "set", policy, "--state-dir", str(up.state_dir)], check=True, capture_output=True)
    found = 0
    with Client(up.url, up.key) as client:
        for requests in (FIRST, FURTHER):
            ids = [client.create(body(client.model(), request))["id"] for request in requests]
            responses = [client.wait(request_id, timeout_s=120.0) for request_id in ids]
            assert {response["status"] for response in responses} == {"completed"}
            answers = [(output_text(response), response["usage"]["output_tokens"]) for response in responses]
            assert answers == [said_alone[request] for request in requests]
            found += sum(response["usage"]["input_tokens_details"]["cached_tokens"] for response in responses)
    assert bool(found) == (cached and policy in CONTINUOUS)


def test_tokens_were_guessed_where_they_may_be(service: tuple[Up, bool, bool]) -> None:
    up, _, guessed = service
    if guessed:
        eventually(lambda: guessed_tokens(up) > 0)
    else:
        assert guessed_tokens(up) == 0


def guessed_tokens(up: Up) -> float:
    """All guesses of the service's workers."""
    lines = httpx.get(f"{up.url}/metrics", timeout=60).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("magnus_guessed_tokens_total{"))


def body(model: str, request: ToyRequest) -> dict[str, object]:
    """The body of a request as a client sends it."""
    metadata = {"application": request.application}
    return {"model": model, "instructions": request.instruction, "input": request.input, "metadata": metadata}
