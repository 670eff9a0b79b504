"""Reads the load of a server from its `/metrics` or llama.cpp's `/slots`; unknown figures are None."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")
WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred")
PREEMPTIONS = ("vllm:num_preemptions_total", "vllm:num_preemptions")
KV_USE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
KV_TOKENS = ("sglang:max_total_num_tokens",)
CACHE_CONFIG = "vllm:cache_config_info"
READ = (*RUNNING, *WAITING, *PREEMPTIONS, *KV_USE, *KV_TOKENS, CACHE_CONFIG)


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """The load at one moment; `preemptions` counts since the server started, `kv_use` is a share from 0 to 1."""

    running: int | None = None
    waiting: int | None = None
    preemptions: int | None = None
    kv_use: float | None = None
    kv_tokens: int | None = None
    block_tokens: int | None = None
    prefix_cache: bool = False

    @property
    def known(self) -> bool:
        """Whether the number of running or waiting rows is known."""
        return self.running is not None or self.waiting is not None


def load_from_metrics(text: str) -> ServerLoad:
    """Returns the load in a page of Prometheus metrics; figures that are missing or malformed are unknown."""
    values: dict[str, float] = {}
    cache: Mapping[str, str] = {}
    for sample in _samples(text):
        if sample.name == CACHE_CONFIG:
            cache = sample.labels
        if math.isfinite(sample.value):
            # summed, because each engine of a server has a line of its own
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
    block_tokens, blocks = _positive(cache.get("block_size")), _positive(cache.get("num_gpu_blocks"))
    return ServerLoad(
        running=_whole(_first(values, RUNNING)),
        waiting=_whole(_first(values, WAITING)),
        preemptions=_whole(_first(values, PREEMPTIONS)),
        kv_use=_first(values, KV_USE),
        kv_tokens=blocks * block_tokens if blocks and block_tokens else _whole(_first(values, KV_TOKENS)),
        block_tokens=block_tokens,
        prefix_cache=cache.get("enable_prefix_caching") == "True",
    )


def _samples(text: str) -> Iterator[Sample]:
    """Yields the samples of READ; parses each line alone, so that a malformed line does not hide the others."""
    for line in text.splitlines():
        if line.startswith(READ):
            try:
                yield from (sample for family in text_string_to_metric_families(line) for sample in family.samples)
            except (ValueError, LookupError):
                continue


def llamacpp_slots(text: str) -> list[Mapping[str, object]]:
    """Returns the slots in llama.cpp's page `/slots`, which exists also without metrics; [] for any other text."""
    try:
        slots = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [slot for slot in slots if isinstance(slot, Mapping)] if isinstance(slots, list) else []


def load_from_slots(text: str) -> ServerLoad:
    """Returns the number of running rows; the page does not show waiting ones."""
    return ServerLoad(running=sum(slot.get("is_processing") is True for slot in llamacpp_slots(text)))


LOAD_PAGES: dict[str, Callable[[str], ServerLoad]] = {"/metrics": load_from_metrics, "/slots": load_from_slots}


def _first(values: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    return next((values[name] for name in names if name in values), None)


def _whole(value: float | None) -> int | None:
    return None if value is None or value < 0 else int(value)


def _positive(value: str | None) -> int | None:
    """Returns the number in a label, if it is whole and from 1 to 10^15."""
    return int(value) if value and value.isdecimal() and len(value) <= 15 and int(value) > 0 else None
