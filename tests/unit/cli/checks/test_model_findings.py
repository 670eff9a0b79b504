"""`magnus doctor --model` tells how a model would be served, from its files alone."""

from pathlib import Path

from cli.checks.doctor_checks import Finding
from cli.checks.model_findings import model_findings
from settings import Settings
from tests.unit.inference.model_directories import removed, setting, whole_model, without


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


def test_weights_that_are_missing_do_not_keep_the_rest_from_being_told(tmp_path: Path) -> None:
    whole_model(tmp_path)
    removed("model.safetensors")(tmp_path)
    findings = found(tmp_path)
    assert findings["model"].found.endswith("it has no weights (*.safetensors)")
    assert findings["model"].remedy
    assert findings["rows that fit"].remedy is None


def test_weights_that_are_not_the_models_are_told_without_reading_them(tmp_path: Path) -> None:
    whole_model(tmp_path)
    without("model.layers.1.")(tmp_path)
    finding = found(tmp_path)["model"]
    assert "its files lack model.layers.1." in finding.found
    assert finding.remedy


def test_a_template_that_refuses_a_message_of_a_user_is_told(tmp_path: Path) -> None:
    whole_model(tmp_path)
    setting("tokenizer_config.json", chat_template="{{ raise_exception('only tools') }}")(tmp_path)
    finding = found(tmp_path)["chat template"]
    assert finding.found == "from tokenizer_config.json: it refuses a user's message: only tools"
    assert finding.remedy
