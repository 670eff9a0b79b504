"""`magnus doctor --model` tells how a model would be served, from its files alone."""

from pathlib import Path

import pytest

from cli.checks.doctor_checks import Finding
from cli.checks.model_findings import model_findings
from settings import Settings
from tests.unit.inference.model_directories import Change, removed, setting, whole_model


def found(model: Path, **settings) -> dict[str, Finding]:
    """The findings by check."""
    return {one.check: one for one in model_findings(Settings(model=str(model), devices="cpu", **settings))}


def test_a_model_is_described_with_the_rows_that_its_cache_holds(tmp_path: Path) -> None:
    whole_model(tmp_path, max_position_embeddings=256)
    findings = found(tmp_path, kv_budget="1MiB", max_prompt_tokens=100, max_output_tokens=28)
    delta_bytes = 2 * 2 * (8 + 8) * 4  # layers, heads of keys, dimensions of keys and values, bytes
    assert not any(one.remedy for one in findings.values())
    assert findings["family"].found == "llama"
    assert findings["layers"].found == "2 layers attend to all tokens"
    assert findings["quantisation"].found == "none"
    assert findings["end of sequence"].found == "1 <eos>"
    assert findings["positions"].found == "256"
    assert findings["memory a token"].found.startswith(f"{delta_bytes / 1024:.2f} KiB (Δ) in float32, beside ")
    rows, whole = 2**20 // (128 * delta_bytes), 2**20 // (256 * delta_bytes)
    assert findings["rows that fit"].found == (
        f"{rows} of 100 + 28 tokens, {whole} of the whole context; Θ = 1.0MiB on cpu (MAGNUS_KV_BUDGET=1MiB)"
    )
    assert findings["chat template"].found.startswith("from tokenizer_config.json: no thinking, no tools")


def test_rows_take_no_more_than_the_windows_of_their_layers(tmp_path: Path) -> None:
    windowed = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 32}
    whole_model(tmp_path, max_position_embeddings=256)
    setting("config.json", **windowed)(tmp_path)
    findings = found(tmp_path, kv_budget="1MiB", max_prompt_tokens=100, max_output_tokens=28)
    rows = 2**20 // (32 * 2 * 2 * (8 + 8) * 4)  # tokens, layers, heads of keys, dimensions of keys and values, bytes
    assert findings["layers"].found == "2 layers attend to windows of 32"
    assert findings["rows that fit"].found.startswith(f"{rows} of 100 + 28 tokens, {rows} of the whole context; ")


def test_a_budget_without_a_row_asks_for_another(tmp_path: Path) -> None:
    whole_model(tmp_path)
    assert found(tmp_path, kv_budget="1KiB")["rows that fit"].remedy == "set MAGNUS_KV_BUDGET to another size, or auto"


def test_weights_that_are_missing_do_not_keep_the_rest_from_being_told(tmp_path: Path) -> None:
    whole_model(tmp_path)
    removed("model.safetensors")(tmp_path)
    findings = found(tmp_path)
    assert findings["model"].found.endswith("it has no weights (*.safetensors)")
    assert findings["model"].remedy
    assert findings["rows that fit"].remedy is None


def test_a_model_without_template_and_end_is_told_so(tmp_path: Path) -> None:
    whole_model(tmp_path, eos_token_id=None)
    for file in ("tokenizer_config.json", "generation_config.json"):
        removed(file)(tmp_path)
    setting("config.json", eos_token_id=None)(tmp_path)
    assert found(tmp_path)["chat template"].found.startswith("none: prompts are the plain texts")


@pytest.mark.parametrize(
    ("change", "line", "remedy"),
    [
        (
            setting("config.json", model_type="doge", keep_window_size=24),
            "beyond 24 tokens a row attends by the length of the batch's longest row",
            "another server may serve it, such as vLLM: magnus up --engine URL",
        ),
        (
            setting("config.json", model_type="t5"),
            "no causal language model of the type t5",
            "name another model, of the families in docs/models.md",
        ),
        (
            setting("tokenizer_config.json", chat_template={"tool_use": "t"}),
            "chat templates named tool_use, and none named default",
            "",
        ),
    ],
)
def test_a_model_that_is_refused_has_one_line_with_a_remedy(
    tmp_path: Path, change: Change, line: str, remedy: str
) -> None:
    change(whole_model(tmp_path))
    refused = found(tmp_path)["model"]
    assert line in refused.found
    assert refused.remedy is not None
    assert remedy in refused.remedy
    assert "\n" not in refused.found
