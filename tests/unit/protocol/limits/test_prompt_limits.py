"""The served model's limits: which model, how long a prompt, how long an answer."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from inference.engine_errors import TooExpensive
from inference.isolated_calls import IsolatedCalls
from inference.prompts.model_prompt import ModelPrompt
from inference.prompts.prompt_format import PromptFormat
from protocol.client_errors import InvalidRequest, NotFound, Unserved
from protocol.limits.prompt_limits import PromptLimits, prompt_limits_of
from request_body import RequestBody, StoredTool
from settings import BUNDLED_MODEL, Settings

WORDS = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
WORDS.pre_tokenizer = Whitespace()


@pytest.fixture(scope="module")
def limits() -> PromptLimits:
    return PromptLimits("words", PromptFormat("words", WORDS.to_str(), None), max_prompt_tokens=5, max_output_tokens=9)


def test_a_prompt_may_be_as_long_as_the_bound_and_not_longer(limits: PromptLimits) -> None:
    counts = limits.count_tokens(ModelPrompt("Translate", "a b c d"), param="input", tenant="acme")
    assert (counts.prompt_tokens, counts.input_tokens) == (5, 4)
    with pytest.raises(InvalidRequest, match="resulted in 6 tokens") as caught:
        limits.count_tokens(ModelPrompt("Translate", "a b c d e"), param="input", tenant="acme")
    assert (caught.value.param, caught.value.code) == ("input", "context_length_exceeded")


def test_text_too_long_for_any_vocabulary_is_refused_without_being_tokenized(limits: PromptLimits) -> None:
    with pytest.raises(InvalidRequest, match="1,281 characters"):
        limits.count_tokens(ModelPrompt("", "x" * 1281), param="input", tenant="acme")


class NeverInTime:
    """Calls in processes of their own, all of which take too long."""

    def call(self, text: str, cpu_s: float, caller: str = "") -> str:
        raise TooExpensive(cpu_s)


def test_a_prompt_that_is_too_expensive_to_encode_is_refused_by_name() -> None:
    prompt_format = PromptFormat("words", WORDS.to_str(), None, long_prompts=cast(IsolatedCalls, NeverInTime()))
    limits = PromptLimits("words", prompt_format, max_prompt_tokens=500, max_output_tokens=9)
    with pytest.raises(InvalidRequest, match="expensive to encode") as caught:
        limits.count_tokens(ModelPrompt("", "x" * 50_000), param="input", tenant="acme")
    assert (caught.value.param, caught.value.code) == ("input", "context_length_exceeded")


def test_definitions_of_functions_are_a_part_of_the_prompts_length(limits: PromptLimits) -> None:
    body = RequestBody(tools=(StoredTool(name="f", description="x" * 1281),))
    with pytest.raises(InvalidRequest, match="characters"):
        limits.count_tokens(ModelPrompt("", "a", body), param="input", tenant="acme")


@pytest.mark.parametrize(("setting", "longest"), [(None, 2047), (300, 300)])
def test_the_longest_prompt_follows_the_models_context_unless_it_is_set(setting: int | None, longest: int) -> None:
    limits = prompt_limits_of(Settings(max_prompt_tokens=setting, model_names="gpt-5, other"), dict)
    assert (limits.max_prompt_tokens, limits.prompt_format.context_tokens) == (longest, 2048)
    for name in ("bundled", "gpt-5", "other"):
        limits.of(name)


def test_an_answer_may_be_as_long_as_the_bound_and_not_longer(limits: PromptLimits) -> None:
    assert limits.output_limit(None, param="max_output_tokens") == 9
    assert limits.output_limit(9, param="max_output_tokens") == 9
    with pytest.raises(InvalidRequest, match="at most 9 tokens") as caught:
        limits.output_limit(10, param="max_tokens")
    assert caught.value.param == "max_tokens"


@pytest.mark.parametrize(
    ("setting", "asked", "prompt", "limit"),
    [
        (None, None, 10, 1024),
        (None, 32_000, 100, 1948),
        (None, 32_000, 2047, 1),
        (None, 5, 10, 5),
        (1500, None, 9, 1500),
    ],
)
def test_a_limit_above_what_the_context_leaves_is_cut_where_the_operator_sets_none(setting, asked, prompt, limit):
    limits = prompt_limits_of(Settings(max_output_tokens=setting), dict)
    assert limits.fitting_limit(limits.output_limit(asked, param="max_tokens"), prompt) == limit


def test_a_limit_above_the_operators_is_refused():
    with pytest.raises(InvalidRequest, match="at most 1,500 tokens"):
        prompt_limits_of(Settings(max_output_tokens=1500), dict).output_limit(1501, param="max_tokens")


def test_a_model_that_long_had_no_worker_takes_no_more_requests(limits: PromptLimits) -> None:
    bounded = replace(limits, unserved_s=3600.0)
    bounded.check_served("words", 3600.0, 400)
    limits.check_served("words", 1e9, 400)
    with pytest.raises(Unserved, match="'words' for 61 minutes, and 400 requests wait") as caught:
        bounded.check_served("words", 3660.0, 400)
    assert caught.value.param == "model"


def test_an_adapter_beside_the_served_model_is_a_model_of_its_own(limits: PromptLimits) -> None:
    named = {"polite": "words", "words": "words", "gpt": "words", "foreign": "another"}
    beside = replace(limits, further_names=("gpt",), all_adapters=lambda: named)
    assert beside.adapters == ["polite"]
    assert [beside.of(name).stored_name(name) for name in ("words", "gpt", "polite")] == ["words", "words", "polite"]
    with pytest.raises(NotFound, match="with 'words' and with the adapters polite"):
        beside.of("foreign")


def test_what_no_engine_can_do_is_refused_by_the_name_of_the_field(limits: PromptLimits) -> None:
    needs = {"temperature": "temperature", "top_k": "magnus.top_k", "response_format": "text.format"}
    limits.check_needs({}, ["temperature", "top_k"])
    limits.check_needs(needs, ["logprobs"])
    for lacking, param in needs.items():
        with pytest.raises(InvalidRequest) as caught:
            limits.check_needs(needs, [lacking])
        assert (caught.value.param, caught.value.code) == (param, "unsupported_value")


def test_a_token_that_the_model_has_no_embedding_for_is_refused_by_its_text() -> None:
    words = Tokenizer(WordLevel({"[UNK]": 0, "cat": 1, "dog": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    limits = PromptLimits("words", PromptFormat("words", words.to_str(), None, embedded_tokens=2), 9, 9)
    limits.count_tokens(ModelPrompt("", "cat cat"), param="input", tenant="acme")
    with pytest.raises(InvalidRequest, match="its token 'dog' has the id 2") as caught:
        limits.count_tokens(ModelPrompt("", "cat dog"), param="input", tenant="acme")
    assert caught.value.param == "input"
    with pytest.raises(InvalidRequest, match="token ids are below 2 here"):
        limits.check_ids([2], param="prompt")


def test_each_lm_has_limits_of_its_own_and_an_unknown_name_lists_them(tmp_path: Path) -> None:
    (tmp_path / "twin").symlink_to(BUNDLED_MODEL)
    read = prompt_limits_of(Settings(models=str(tmp_path / "twin"), model_names="gpt-5"), dict)
    limits = replace(read, all_adapters=dict)
    assert [limits.of(name).model_name for name in ("bundled", "gpt-5", "twin")] == ["bundled", "bundled", "twin"]
    with pytest.raises(NotFound, match="answers with 'bundled' or 'twin'"):
        limits.of("other")
