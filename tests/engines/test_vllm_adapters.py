"""LoRA adapters that vLLM serves beside its model: clients see them as models, and get what peft's `generate` gives."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from peft import PeftModel
from transformers import AutoModelForCausalLM

from benchmarks.outside_engines.server_processes import running_engine
from inference.prompts.prompt_format import load_prompt_format
from inference.toy.toy_applications import ToyRequest, toy_requests
from settings import BUNDLED_MODEL
from tests.e2e.whole_service import Up, running_up
from tests.engines.tested_engines import TERMS
from tests.models.tiny_adapters import KINDS, write_adapters
from tests.unit.inference.tiny_models import MARGIN, answered_alone

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(400),  # vLLM takes minutes to start where others use the cores too
    # peft asks the model for a property that transformers renames
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]
# Of KINDS, since vLLM knows no ranks by module; with scalings by which they change almost every answer.
ADAPTERS = {"narrow": KINDS["narrow"] | {"lora_alpha": 32}, "wide": KINDS["wide"] | {"lora_alpha": 16}}
LIMIT = 40
ASKED = toy_requests(5, 3, median_words=8.0)


@dataclass(frozen=True)
class Adapted:
    """A service in front of vLLM with these adapters."""

    up: Up
    adapters: Path


@pytest.fixture(scope="module", params=("vllm",))
def adapted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    """The bundled model with the adapters of ADAPTERS, in vLLM behind a service."""
    directory = tmp_path_factory.mktemp("adapted")
    adapters = write_adapters(base_model(), directory / "adapters", ADAPTERS)
    modules = [f"{name}={adapters / name}" for name in ADAPTERS]
    # On a CPU, vLLM gives rows without an adapter the one in its last place, which therefore stays empty (vllm#48421).
    places = str(len(ADAPTERS) + 1)
    terms = replace(TERMS, flags=("--enable-lora", "--max-loras", places, "--lora-modules", *modules))
    with running_engine(request.param, terms, directory) as server, running_up("--engine", server.url) as up:
        yield Adapted(up, adapters)


def base_model() -> Any:
    return AutoModelForCausalLM.from_pretrained(BUNDLED_MODEL, dtype="float32").eval()


def right_answers(model: Any) -> list[tuple[str, int]]:
    """The texts and numbers of tokens that `generate` answers to each of ASKED, none of which rounding could change."""
    prompts, right = load_prompt_format(str(BUNDLED_MODEL)), []
    for one in ASKED:
        answer, leads = answered_alone(model, tuple(prompts.encode(one.instruction, one.input)), LIMIT)
        assert leads.min() > MARGIN
        right.append((prompts.decode(answer), len(answer)))
    return right


def test_clients_see_the_adapters_as_models_and_each_request_is_answered_as_peft_answers_it(adapted: Adapted):
    right = {"bundled": right_answers(base_model())}
    for name in ADAPTERS:
        right[name] = right_answers(PeftModel.from_pretrained(base_model(), adapted.adapters / name))
    assert len(set(map(tuple, right.values()))) == len(right)
    with OpenAI(base_url=f"{adapted.up.url}/v1", api_key=adapted.up.key, timeout=300) as client:
        listed = {one.id: one.model_dump()["parent"] for one in client.models.list()}
        assert listed == {"bundled": None, "narrow": "bundled", "wide": "bundled"}

        def answer(model: str, asked: ToyRequest) -> tuple[str, int]:
            done = client.responses.create(
                model=model, instructions=asked.instruction, input=asked.input, max_output_tokens=LIMIT
            )
            assert done.usage is not None
            return done.output_text, done.usage.output_tokens

        with ThreadPoolExecutor(len(ASKED) * len(right)) as pool:  # rows of all of them run together
            answers = {model: [pool.submit(answer, model, one) for one in ASKED] for model in right}
    assert {model: [one.result() for one in each] for model, each in answers.items()} == right
