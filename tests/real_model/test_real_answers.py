"""The real language model over the whole service: its template, its ends, its answers token for token in float32."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cli.api_client import Client, output_text
from inference.engine_requests import DecodingRequest
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.loading.model_loading import LoadedModel, load_model
from inference.prompts.prompt_format import load_prompt_format
from scheduling.sharing.policy_factory import POLICIES
from tests.e2e.whole_service import MAGNUS, Up, running_up
from tests.real_model.instructions import INSTRUCTIONS
from tests.unit.inference.foreseen_tokens import Foreseen

pytestmark = pytest.mark.timeout(900)

LIMIT = 32  # tokens of an answer: the reference generates them one request at a time


@pytest.fixture(scope="module")
def up(smollm2: Path) -> Iterator[Up]:
    """The service with one worker, in float32, so that answers can be compared token for token."""
    given = {"MAGNUS_MODEL": str(smollm2), "MAGNUS_DTYPE": "float32", "MAGNUS_WORKERS": "1"}
    os.environ.update(given)
    try:
        with running_up() as up:
            yield up
    finally:
        for name in given:
            del os.environ[name]


@pytest.fixture(scope="module")
def said_alone(smollm2: Path) -> list[tuple[str, int]]:
    """Text and number of tokens of each answer by `model.generate`, one request after the other."""
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    answers = []
    for system, user in INSTRUCTIONS:
        turns = [{"role": "system", "content": system}] if system else []
        turns.append({"role": "user", "content": user})
        prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        generated = model.generate(**prompt, max_new_tokens=LIMIT, do_sample=False)[0, prompt["input_ids"].shape[1] :]
        answers.append((tokenizer.decode(generated, skip_special_tokens=True), len(generated)))
    return answers


def test_prompts_are_those_of_the_chat_template_with_and_without_a_system_prompt(smollm2: Path) -> None:
    ours, theirs = load_prompt_format(str(smollm2)), AutoTokenizer.from_pretrained(smollm2)
    for system, user in INSTRUCTIONS:
        turns = [{"role": "system", "content": system}] if system else []
        rendered = theirs.apply_chat_template([*turns, {"role": "user", "content": user}], add_generation_prompt=True)
        expected = rendered["input_ids"] if hasattr(rendered, "keys") else rendered
        assert ours.encode(system, user) == list(expected)


def test_it_ends_on_its_own_eos_and_knows_its_positions(loaded: LoadedModel) -> None:
    assert loaded.eos_ids == {2}
    assert loaded.max_positions == 8192
    assert loaded.weight_bytes < 545_000_000  # the tied embedding counts once


@pytest.mark.parametrize("policy", sorted(POLICIES.keys() - {"vsq"}))  # vsq is vs on a quantized model
def test_answers_are_those_of_generate_under(policy: str, up: Up, said_alone: list[tuple[str, int]]) -> None:
    subprocess.run([MAGNUS, "policy", "set", policy, "--state-dir", str(up.state_dir)], check=True, capture_output=True)
    with Client(up.url, up.key) as client:
        model = client.model()
        bodies = [
            {"model": model, "instructions": system or None, "input": user, "max_output_tokens": LIMIT}
            for system, user in INSTRUCTIONS
        ]
        ids = [client.create({name: value for name, value in body.items() if value})["id"] for body in bodies]
        responses = [client.wait(request_id, timeout_s=300.0) for request_id in ids]
    answers = [(output_text(response), response["usage"]["output_tokens"]) for response in responses]
    assert answers == said_alone


@pytest.fixture(scope="module")
def loaded(smollm2: Path) -> LoadedModel:
    """The model in float32."""
    return load_model(str(smollm2), dtype="float32")


def served(
    loaded: LoadedModel, sequences: list[DecodingRequest], **options: Any
) -> tuple[dict[str, tuple[int, ...]], Engine]:
    """The answers' tokens, from an engine in which a row joins the running ones at every step."""
    engine, waiting, answers = (
        Engine(loaded, 2**29, EngineOptions(**options)),
        list(sequences),
        dict[str, tuple[int, ...]](),
    )
    while waiting or engine.rows:
        if waiting:
            engine.insert([waiting.pop(0)])
        answers |= {row.id: row.generated_ids for row in engine.step()}
    return answers, engine


@pytest.mark.parametrize("guessed", [False, True], ids=["not guessed", "guessed"])
@pytest.mark.parametrize("prefix_cache", [False, True], ids=["cache off", "cache on"])
def test_joiners_that_are_prefilled_in_pieces_say_the_same(
    prefix_cache: bool, guessed: bool, smollm2: Path, loaded: LoadedModel, said_alone: list[tuple[str, int]]
) -> None:
    encode = load_prompt_format(str(smollm2)).encode
    asked = [DecodingRequest(str(n), tuple(encode(*turns)), LIMIT) for n, turns in enumerate(INSTRUCTIONS)]
    options: dict[str, Any] = {"prefill_tokens": 16, "prefix_cache": prefix_cache}
    answers, _ = served(loaded, asked, **options)
    if guessed:  # of five guesses one is wrong
        guessing = Foreseen([(*one.prompt_ids, *answers[one.id]) for one in asked])
        answers, engine = served(loaded, asked, guessing=guessing, **options)
        assert engine.figures.right_guesses > LIMIT
    texts = [loaded.tokenizer.decode(answers[one.id], skip_special_tokens=True) for one in asked]
    assert [(text, len(answers[one.id])) for text, one in zip(texts, asked, strict=True)] == said_alone


def test_chat_completions_say_the_same(up: Up, said_alone: list[tuple[str, int]]) -> None:
    client = openai.OpenAI(base_url=f"{up.url}/v1", api_key=up.key, timeout=120)
    turns: list[Any]
    for (system, user), (text, tokens) in list(zip(INSTRUCTIONS, said_alone, strict=True))[::8]:
        turns = [{"role": "system", "content": system}] if system else []
        chat = client.chat.completions.create(
            model="smollm2", messages=[*turns, {"role": "user", "content": user}], max_tokens=LIMIT, temperature=0
        )
        assert chat.usage is not None
        assert (chat.choices[0].message.content, chat.usage.completion_tokens) == (text, tokens)
