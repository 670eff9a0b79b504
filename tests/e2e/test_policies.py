"""Every policy over the whole service says what the model says to each request alone, token for token."""

import subprocess

import pytest
import torch
from transformers import AutoModelForCausalLM

from cli.api_client import Client, output_text
from inference.prompt_format import load_prompt_format
from inference.toy.toy_applications import ToyRequest, toy_requests
from scheduling.policies.policy_factory import POLICIES
from settings import BUNDLED_MODEL
from tests.e2e.whole_service import MAGNUS, Up

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

REQUESTS = toy_requests(24, seed=5, median_words=20.0)


@pytest.fixture(scope="module")
def said_alone() -> list[tuple[str, int]]:
    """Text and number of tokens of each request's answer by `model.generate`, one after the other."""
    model = AutoModelForCausalLM.from_pretrained(BUNDLED_MODEL, dtype=torch.float32)
    prompts = load_prompt_format(str(BUNDLED_MODEL))
    answers = []
    for request in REQUESTS:
        prompt = torch.tensor([prompts.encode(request.instruction, request.input)])
        generated = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=300, do_sample=False)[
            0, prompt.shape[1] :
        ].tolist()
        answers.append((prompts.decode(generated), len(generated)))
    return answers


@pytest.mark.parametrize("policy", sorted(POLICIES.keys() - {"vsq"}))  # vsq is vs on a quantized model
def test_answers_are_the_same_under_every_policy(up: Up, policy: str, said_alone: list[tuple[str, int]]) -> None:
    subprocess.run([MAGNUS, "policy", "set", policy, "--state-dir", str(up.state_dir)], check=True, capture_output=True)
    with Client(up.url, up.key) as client:
        ids = [client.create(body(client.model(), request))["id"] for request in REQUESTS]
        responses = [client.wait(request_id, timeout_s=120.0) for request_id in ids]
    assert {response["status"] for response in responses} == {"completed"}
    answers = [(output_text(response), response["usage"]["output_tokens"]) for response in responses]
    assert answers == said_alone


def body(model: str, request: ToyRequest) -> dict[str, object]:
    """The body of a request as a client sends it."""
    metadata = {"application": request.application}
    return {"model": model, "instructions": request.instruction, "input": request.input, "metadata": metadata}
