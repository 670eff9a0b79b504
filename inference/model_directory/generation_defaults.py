"""Reads a model's generation_config.json: its authors' sampling parameters, and the entries that are not honoured."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Entries that have an effect on sampling only, under the names of the fields of `request_body.Sampling`.
SAMPLED = ("temperature", "top_p", "top_k", "min_p")
# USED entries are honoured or say nothing about an answer; any other entry asks for nothing if its value is NEUTRAL.
USED = frozenset({*SAMPLED, "do_sample", "repetition_penalty", "eos_token_id", "pad_token_id", "bos_token_id"})
USED |= {"suppress_tokens", "transformers_version", "max_new_tokens", "max_length", "use_cache", "_from_model_config"}
NEUTRAL: tuple[Any, ...] = (None, False, 0, 1, 1.0, [], {}, "")


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """The values of Sampling that a request gets if its client sends none, and the entries that are not honoured."""

    sampling: Mapping[str, float] = field(default_factory=dict)
    not_honoured: tuple[str, ...] = ()


def generation_defaults(config: Mapping[str, Any]) -> GenerationDefaults:
    """Reads a generation_config.json; an entry with a value that no request could ask for is not honoured.

    As in transformers, `do_sample` false asks for greedy decoding. As in vLLM, a config without `do_sample` asks for
    sampling if it has any sampling parameter. A config that samples has the temperature 1 unless it states another.
    """
    samples = config.get("do_sample", any(config.get(name) is not None for name in SAMPLED))
    names = (*SAMPLED, "repetition_penalty") if samples else ("repetition_penalty",)
    asked = {name: config[name] for name in names if config.get(name) is not None}
    if samples:
        asked.setdefault("temperature", 1.0)
    kept = {name: value for name, value in asked.items() if _possible(name, value)}
    others = [name for name, value in config.items() if name not in USED and value not in NEUTRAL]
    return GenerationDefaults(kept, tuple(sorted({*others, *(asked.keys() - kept.keys())})))


def _possible(name: str, value: object) -> bool:
    """Returns whether a client might send this value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    ranges = {"temperature": 0 <= value <= 2, "top_p": 0 < value <= 1, "min_p": 0 <= value <= 1}
    ranges |= {"top_k": isinstance(value, int) and 0 <= value < 2**31, "repetition_penalty": 0.01 <= value <= 100}
    return ranges[name]
