"""Predictors that ask the served model: its pooled hidden states, and its own perception of its answer's length."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from inference.prompts.prompt_format import PromptFormat
from learning.estimators.metrics import score
from learning.features.length_predictor import Outcome, Prompt
from learning.predictors.hidden_states import LenTokenPredictor, PooledStatesPredictor
from learning.predictors.language_model import LanguageModel
from learning.predictors.length_bins import BIN_TOKENS, Target, bin_upper_bound, target_bins
from learning.predictors.perception import PerceptionPredictor
from learning.store import digest, dump, load
from tests.unit.learning.made_up_lengths import outcomes, prompt, wordy_outcomes

MODEL = str(Path(__file__).parents[3] / "inference" / "bundled")
TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
WITH_SYSTEM, NO_SYSTEM = TURNS, "{% if messages[0].role == 'system' %}{{ raise_exception('none') }}{% endif %}" + TURNS
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.fixture(scope="module")
def pooled() -> PooledStatesPredictor:
    predictor = PooledStatesPredictor(MODEL)
    predictor.fit(wordy_outcomes(160))
    return predictor


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Llama of random weights: it can be taught anything, and says nothing sensible before."""
    directory = str(tmp_path_factory.mktemp("model"))
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.save_pretrained(directory)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=512,
            initializer_range=0.3,
            eos_token_id=tokenizer.eos_token_id,
        )
        LlamaForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def tuned(small_model: str) -> PerceptionPredictor:
    """Two short requests whose answers' bins, of 12 tokens, the model learns by heart, by LoRA only."""
    predictor = PerceptionPredictor(small_model, rate=1e-2, epochs=80, batch=8, projections=PROJECTIONS)
    short = [Outcome(prompt("a", 1, "red"), 20), Outcome(prompt("a", 1, "red"), 30)]
    long = [Outcome(prompt("b", 2, "green stone"), 170), Outcome(prompt("b", 2, "green stone"), 10)]
    predictor.fit([*short, *long, Outcome(prompt("c", 1, "x"), 3, censored=True)])
    return predictor


def test_pooled_states_tell_stories_from_names(pooled: PooledStatesPredictor) -> None:
    test = wordy_outcomes(60, seed=1)
    scores = score(pooled.predict([o.prompt for o in test]), [o.generated_tokens for o in test])
    assert scores.tau > 0.3
    assert scores.acc_50 > 0.8


@pytest.mark.parametrize("instruction", ["Repeat the words.", ""])
@pytest.mark.parametrize("template", [NO_SYSTEM, WITH_SYSTEM])
def test_a_predictor_reads_the_prompt_that_is_answered(small_model: str, instruction: str, template: str) -> None:
    vocabulary = (Path(MODEL) / "tokenizer.json").read_text()
    answered = PromptFormat("any", vocabulary, template)
    model = LanguageModel(small_model)
    model.tokenizer.chat_template = template
    read = model.render(Prompt("app", instruction, "red green", 10, 2, 64))
    assert model.tokenizer(read, add_special_tokens=False)["input_ids"] == answered.encode(instruction, "red green")


def test_the_tuned_model_prints_the_bound_of_the_longest_answers_bin(tuned: PerceptionPredictor) -> None:
    assert tuned.printed_lengths([prompt("a", 1, "red"), prompt("b", 2, "green stone")]) == [36, 180]
    predicted = tuned.predict([prompt("a", 1, "red"), prompt("b", 2, "green stone", limit=150)])
    assert [p.tokens for p in predicted] == [36, 150]


def test_tuning_leaves_the_base_weights_alone_and_the_store_keeps_only_adapters(tuned: PerceptionPredictor) -> None:
    stored = dump(tuned)
    again = load(stored, digest(stored))
    assert len(stored) < 300_000  # the base model has 0.9 MB
    assert again.printed_lengths([prompt("a", 1, "red"), prompt("b", 2, "green stone")]) == [36, 180]


@pytest.mark.parametrize("mode", ["only", "in_advance"])
def test_a_model_that_prints_no_number_fails_to_the_user_input_length(mode: str) -> None:
    predictor = PerceptionPredictor(MODEL, mode)
    predictor.fit(outcomes(4))
    asked = [prompt(words=5), prompt(words=9)]
    printed = predictor.printed_lengths(asked)
    assert [p.tokens for p in predictor.predict(asked)] == [
        n if n else p.input_tokens for n, p in zip(printed, asked, strict=True)
    ]


def test_a_state_of_the_len_token_tells_short_answers_from_long_ones_also_after_the_store(small_model: str) -> None:
    predictor = LenTokenPredictor(small_model, epochs=60, rate=1e-2)
    texts = ["red", "green stone"]
    predictor.fit([Outcome(prompt("a", 1, text), length) for text, length in zip(texts, (20, 400), strict=True)] * 4)
    stored = dump(predictor)
    again = load(stored, digest(stored))
    for each in (predictor, again):
        short, long = each.predict([prompt("a", 1, text) for text in texts])
        assert short.upper_tokens <= 50
        assert 350 < long.tokens <= 420


@pytest.mark.parametrize(("target", "bound"), [("longest", 200), ("mean", 100)])
def test_the_target_is_the_longest_of_a_prompts_answers_or_their_mean(target: Target, bound: int) -> None:
    asked = prompt("a", 1, "red")
    bins = target_bins([Outcome(asked, 20), Outcome(asked, 160)], target, BIN_TOKENS)
    assert {bin_upper_bound(number) for number in bins.values()} == {bound}
