"""Converts a Llama model directory into a file for llama.cpp: `gguf_conversion.py DIRECTORY FILE [float32|bfloat16]`.

The environment of llama.cpp runs this file by its path, so it imports nothing of Magnus.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float32]

TYPES = {"float32": gguf.GGMLQuantizationType.F32, "bfloat16": gguf.GGMLQuantizationType.BF16}
# llama.cpp splits text by this rule before it merges byte pairs. Both models here have GPT-2's rule in their
# tokenizer.json. The rule hardly matters, because prompts arrive as token ids.
TEXT_SPLIT = "gpt-2"
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
INSIDE = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tensors(directory: Path, config: dict[str, Any]) -> Iterator[tuple[str, Weights]]:
    """Yield the weights under llama.cpp's names, those of queries and keys in the order of its rotary embedding."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, weights in read_safetensors(directory / "model.safetensors"):
        stem = name.removesuffix(".weight")
        if stem in OUTSIDE:
            yield f"{OUTSIDE[stem]}.weight", weights
            continue
        layer, _, part = stem.removeprefix("model.layers.").partition(".")
        ours = INSIDE[part]
        yield f"blk.{layer}.{ours}.weight", paired(weights, heads[ours]) if ours in heads else weights


def read_safetensors(file: Path) -> Iterator[tuple[str, Weights]]:
    """Yield the tensors of a file, which are float32 or bfloat16, as float32, because numpy has no bfloat16."""
    with file.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
        begin = opened.tell()
        for name, entry in sorted(header.items()):
            if name == "__metadata__":
                continue
            start, end = entry["data_offsets"]
            opened.seek(begin + start)
            raw = opened.read(end - start)
            yield name, as_float32(raw, entry["dtype"]).reshape(entry["shape"])


def as_float32(raw: bytes, dtype: str) -> Weights:
    """Decode a tensor's bytes; bfloat16 is the upper half of float32."""
    if dtype == "BF16":
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype != "F32":
        raise SystemExit(f"tensors of type {dtype} are not converted")
    return np.frombuffer(raw, np.float32)


def paired(weights: Weights, heads: int) -> Weights:
    """Put rows i and i + d/2 of each head of d rows side by side: transformers rotates halves, llama.cpp neighbours."""
    rows, columns = weights.shape
    halves = weights.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


def add_tokenizer(writer: gguf.GGUFWriter, directory: Path, config: dict[str, Any]) -> None:
    """Add the byte-level vocabulary and merges of tokenizer.json, and the chat template."""
    described = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    template_file = directory / "chat_template.jinja"
    special = {token["id"] for token in described["added_tokens"] if token["special"]}
    by_id = {number: token for token, number in described["model"]["vocab"].items()}
    by_id |= {token["id"]: token["content"] for token in described["added_tokens"]}
    tokens = [by_id.get(number, f"[PAD{number}]") for number in range(config["vocab_size"])]
    kinds = [
        gguf.TokenType.UNUSED
        if number not in by_id
        else gguf.TokenType.CONTROL
        if number in special
        else gguf.TokenType.NORMAL
        for number in range(len(tokens))
    ]
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in described["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(TEXT_SPLIT)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    template = template_file.read_text(encoding="utf-8") if template_file.exists() else settings.get("chat_template")
    if template:
        writer.add_chat_template(template)


def convert(directory: Path, file: Path, dtype: str) -> None:
    """Write the model to the file: matrices in `dtype`, the norms' vectors in float32, as llama.cpp requires."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama":
        raise SystemExit(f"{directory} holds a {config['model_type']}; only Llama models are converted")
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name(directory.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    add_tokenizer(writer, directory, config)
    for name, weights in tensors(directory, config):
        kind = TYPES[dtype] if weights.ndim > 1 else TYPES["float32"]
        writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]), *(sys.argv[3:] or ["float32"]))
