"""What a server says of its load: vLLM's and SGLang's `/metrics`, llama.cpp's `/slots`; unknown figures are None."""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

# A line of Prometheus's text format: name, labels, value.
METRIC = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")
WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred")
PREEMPTIONS = ("vllm:num_preemptions_total", "vllm:num_preemptions")
KV_USE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
KV_TOKENS = ("sglang:max_total_num_tokens",)
CACHE_CONFIG = "vllm:cache_config_info"


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """Figures of one moment; `preemptions` counts since the server started, `kv_use` is a share."""

    running: int | None = None
    waiting: int | None = None
    preemptions: int | None = None
    kv_use: float | None = None
    kv_tokens: int | None = None
    block_tokens: int | None = None
    prefix_cache: bool = False

    @property
    def known(self) -> bool:
        """Whether it says how many rows run or wait."""
        return self.running is not None or self.waiting is not None


def load_from_metrics(text: str) -> ServerLoad:
    """The load in a page of metrics; lines that are none are passed over."""
    values: dict[str, float] = {}
    cache: Mapping[str, str] = {}
    for line in text.splitlines():
        found = METRIC.match(line)
        if found is None:
            continue
        name, labels, value = found.groups()
        if name == CACHE_CONFIG:
            cache = dict(LABEL.findall(labels or ""))
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isfinite(number):
            values[name] = values.get(name, 0.0) + number  # a line for each engine of the server
    block_tokens = _positive(cache.get("block_size"))
    blocks = _positive(cache.get("num_gpu_blocks"))
    kv_tokens = _first(values, KV_TOKENS)
    return ServerLoad(
        running=_whole(_first(values, RUNNING)),
        waiting=_whole(_first(values, WAITING)),
        preemptions=_whole(_first(values, PREEMPTIONS)),
        kv_use=_first(values, KV_USE),
        kv_tokens=blocks * block_tokens if blocks and block_tokens else _whole(kv_tokens),
        block_tokens=block_tokens,
        prefix_cache=cache.get("enable_prefix_caching") == "True",
    )


def slots_of(text: str) -> list[Mapping[str, object]]:
    """The slots in llama.cpp's page of them, which is there also where its metrics are off; none in any other text."""
    try:
        slots = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [slot for slot in slots if isinstance(slot, Mapping)] if isinstance(slots, list) else []


def load_from_slots(text: str) -> ServerLoad:
    """The rows that run; how many wait, the slots do not say."""
    return ServerLoad(running=sum(slot.get("is_processing") is True for slot in slots_of(text)))


LOAD_PAGES: dict[str, Callable[[str], ServerLoad]] = {"/metrics": load_from_metrics, "/slots": load_from_slots}


def _first(values: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    return next((values[name] for name in names if name in values), None)


def _whole(value: float | None) -> int | None:
    return None if value is None or value < 0 else int(value)


def _positive(value: str | None) -> int | None:
    return int(value) if value is not None and re.fullmatch(r"[1-9]\d{0,14}", value) else None
