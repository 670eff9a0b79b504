"""The families of the zoo. `python -m tests.models.served_families` writes the table in docs/models.md from a run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from inference.engine_errors import UnsupportedModel
from inference.engine_requests import DecodingRequest
from inference.local.kv.attention_windows import described
from inference.local.loading.decoding_check import ELSEWHERE
from inference.local.loading.model_loading import prepare_model
from tests.models.tiny_families import ORIGINAL, POSITIONS, Family, longrope, prompts, scaled, tiny_model
from tests.models.ways_of_serving import ANSWER, WAYS, Way, answers_alone
from tests.unit.inference.tiny_models import Letters

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
HEAD = "| layers, or why not | answers | families |\n|---|---|---|\n"

# Indexers with enough heads that no two tokens have the same score
INDEXED = {"num_key_value_heads": 4, "index_topk": 16, "index_n_heads": 16, "index_head_dim": 16}
KDA = ["linear_attention", "full_attention"] * 2
ZAMBA = {"num_hidden_layers": 6, "layers_block_type": ["mamba", "mamba", "hybrid"] * 2, "attention_head_dim": 16}

FAMILIES = (
    Family("Llama, SmolLM2, TinyLlama", "llama"),
    Family(
        "Llama 3.1 to 3.3",
        "llama",
        scaled("llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=ORIGINAL),
    ),
    Family("Llama with linear rope", "llama", scaled("linear")),
    Family("Llama with dynamic rope", "llama", scaled("dynamic")),
    Family("Llama with YaRN", "llama", scaled("yarn", original_max_position_embeddings=ORIGINAL)),
    Family("Llama with longrope", "llama", longrope(), fast=True),
    Family("Llama 4", "llama4_text", {"floor_scale": 16, "attn_scale": 0.5}, fast=True),
    Family("Mistral 7B v0.1", "mistral", fast=True),
    Family("Mistral from v0.2", "mistral", {"sliding_window": None}),
    Family("Mixtral", "mixtral", {"sliding_window": None}),
    Family("Mixtral with a window", "mixtral"),
    Family("Ministral", "ministral"),
    Family("Qwen2, Qwen2.5", "qwen2"),
    Family("Qwen2 with windows", "qwen2", {"use_sliding_window": True, "max_window_layers": 2}),
    Family("Qwen2-MoE", "qwen2_moe"),
    Family("Qwen3", "qwen3"),
    Family("Qwen3 with windows", "qwen3", {"use_sliding_window": True, "max_window_layers": 2}, fast=True),
    Family("Qwen3-MoE", "qwen3_moe"),
    Family("Qwen3-Next", "qwen3_next"),
    Family("Qwen3.5", "qwen3_5_text"),
    Family("Gemma", "gemma"),
    Family("Gemma 2", "gemma2", {"tie_word_embeddings": False}, fast=True),
    Family("Gemma 3", "gemma3_text", {"num_hidden_layers": 6, "tie_word_embeddings": False}, fast=True),
    Family(
        "Gemma 3n",
        "gemma3n_text",
        {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2}
        | {"hidden_size_per_layer_input": 8, "laurel_rank": 4, "activation_sparsity_pattern": None},
        fast=True,
    ),
    Family("Gemma 4", "gemma4_text", {"hidden_size_per_layer_input": 8}),
    Family("Phi-1, Phi-2", "phi"),
    Family("Phi-3 4k, Phi-4", "phi3", {"sliding_window": 2 * POSITIONS}),
    Family("Phi-3 with a window", "phi3"),
    Family(
        "Phi-3 128k, Phi-4-mini",
        "phi3",
        {"sliding_window": None, "original_max_position_embeddings": ORIGINAL, **longrope()},
        fast=True,
    ),
    Family("Phi-3.5-MoE", "phimoe", longrope(short_mscale=1.1, long_mscale=1.3)),
    Family("gpt-oss", "gpt_oss", fast=True),
    Family("OLMo", "olmo"),
    Family("OLMo 2", "olmo2"),
    Family("OLMo 3", "olmo3"),
    Family("OLMoE", "olmoe"),
    Family("Cohere", "cohere"),
    Family("Cohere 2", "cohere2", fast=True),
    Family("EXAONE 4", "exaone4", {"sliding_window_pattern": 4}),
    Family("StarCoder 2", "starcoder2"),
    Family("StarCoder", "gpt_bigcode"),
    Family("Granite", "granite"),
    Family("Granite MoE", "granitemoe"),
    Family("Granite 4 hybrid", "granitemoehybrid", {"layer_types": ["mamba", "attention"] * 2}),
    Family("SmolLM3", "smollm3"),
    Family("Nemotron", "nemotron"),
    Family("StableLM", "stablelm"),
    Family("GLM", "glm"),
    Family("GLM-4", "glm4"),
    Family("DeepSeek-V2", "deepseek_v2", {"num_key_value_heads": 4}),
    Family("DeepSeek-V3", "deepseek_v3", {"num_key_value_heads": 4}),
    Family("DeepSeek-V3.2", "deepseek_v32", INDEXED, fast=True),
    Family("GLM-5", "glm_moe_dsa", INDEXED),
    Family("A.X K2", "axk2", INDEXED),
    Family("Hunyuan 4", "hy_v4", INDEXED),
    Family("dots3", "dots3_note_text", INDEXED),
    Family("MiniCPM3", "minicpm3", longrope() | {"num_key_value_heads": 4, "initializer_range": 0.6}),
    Family("ERNIE 4.5", "ernie4_5"),
    Family("Hunyuan", "hunyuan_v1_dense"),
    Family("Seed-OSS", "seed_oss"),
    Family("Apertus", "apertus"),
    Family("GPT-2", "gpt2", fast=True),
    Family("GPT-J", "gptj", {"rotary_dim": 4}),
    Family("GPT-NeoX, Pythia", "gpt_neox"),
    Family("GPT-Neo", "gpt_neo", {"attention_types": [[["global", "local"], 2]]}, fast=True),
    Family("OPT", "opt"),
    Family("Bloom", "bloom", {"tie_word_embeddings": False}, fast=True),
    Family("Falcon", "falcon"),
    Family("Falcon-RW", "falcon", {"alibi": True, "new_decoder_architecture": False}),
    Family("MiMo-V2-Flash", "mimo_v2_flash"),
    Family("MPT", "mpt", {"initializer_range": 0.5}),
    Family("Doge", "doge"),
    Family("Mamba", "mamba"),
    Family("Mamba 2", "mamba2", {"num_heads": 8, "head_dim": 8, "n_groups": 1}),
    Family("Jamba", "jamba", {"attn_layer_period": 2, "attn_layer_offset": 1}),
    Family("Nemotron-H", "nemotron_h", {"n_groups": 1}, fast=True),
    Family("Bamba", "bamba", {"attn_layer_indices": [1, 3]}),
    Family("Kimi Linear", "kimi_linear", {"num_key_value_heads": 4, "layer_types": KDA}),
    Family("Zamba", "zamba", ZAMBA | {"n_mamba_heads": 2, "mamba_dt_rank": 4, "attention_hidden_size": 64}),
    Family("Zamba 2", "zamba2", ZAMBA | {"n_mamba_heads": 8}),
    Family("Falcon-H1", "falcon_h1", {"mamba_d_ssm": 64}),
    Family("LFM2", "lfm2", {"layer_types": ["conv", "full_attention"] * 2}, fast=True),
)


def shown(family: Family) -> str:
    """A family as the table names it."""
    return f"{family.name} (`{family.model_type}`)"


class Served(NamedTuple):
    """What became of a family: its layers, or why it is refused, its answers, and why a GPU's kernels are not used."""

    layers: str
    answers: str
    slowed_by: str = ""


def served(family: Family, device: str = "cpu", ways: Sequence[Way] = WAYS) -> Served:
    """Serves a family in each way; AssertionError if an answer is wrong."""
    model = tiny_model(family).to(device)
    alone = answers_alone(model, prompts())
    assert len({token for each in alone for token in each.answer}) > 10, "its answers are too alike to tell an error"
    try:
        loaded = prepare_model(model, Letters(), family.name)
    except UnsupportedModel as refused:
        return Served(refused.reason.removesuffix(f"; {ELSEWHERE}"), "refused")
    sequences = [DecodingRequest(str(row), each.prompt_ids, ANSWER) for row, each in enumerate(alone)]
    for way in ways:
        answers = way(replace(loaded, eos_ids=frozenset()), sequences)
        together = [answers[str(row)][: len(each.answer)] for row, each in enumerate(alone)]
        assert together == [each.answer for each in alone], f"{family.name} {way.__name__}"
    return Served(described(loaded.layout.kinds, loaded.layout.windows), "equal", loaded.slowed_by)


def table_of_page() -> str:
    """The table as docs/models.md has it."""
    return PAGE.read_text().partition(HEAD)[2].partition("\n\n")[0].strip()


def families_of_page() -> dict[str, tuple[str, str]]:
    """What the table says of each family."""
    lines = [line.strip("| ").split(" | ") for line in table_of_page().split("\n")]
    return {family: (layers, answers) for layers, answers, families in lines for family in families.split("; ")}


if __name__ == "__main__":
    made: dict[tuple[str, str], list[str]] = {}
    for one in FAMILIES:
        made.setdefault(served(one)[:2], []).append(shown(one))
    lines = [f"| {layers} | {answers} | {'; '.join(families)} |" for (layers, answers), families in made.items()]
    PAGE.write_text(PAGE.read_text().replace(table_of_page(), "\n".join(lines)))
