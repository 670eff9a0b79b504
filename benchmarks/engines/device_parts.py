"""Measures what parts of our engine gain on a device: graphs and kernels, prefix cache, joiners' chunks, guesses."""

from itertools import chain, islice
from time import perf_counter

from benchmarks.engines import guessed_copies, join_gaps, shared_prefixes
from benchmarks.engines.bandwidth_floor import bandwidth, floor_s, step_s
from benchmarks.engines.compared_engines import without
from benchmarks.engines.engine_options import Clock
from benchmarks.harness import Column, Json
from benchmarks.outside_engines.server_processes import Dtype
from inference.engine_requests import DecodingRequest
from inference.local.loading.model_loading import LoadedModel, load_model
from inference.prompts.prompt_format import load_prompt_format
from settings import BUNDLED_MODEL

# Requests of one instruction: their number, rows at once, tokens of the instruction, of each input and of each answer.
SHARING = (64, 16, 512, 48, 48)
# Joins: the running rows, the tokens of each joiner's prompt and answer, the joiners of a join, the number of joins.
JOINING = (16, (512, 4), 4, 3)
BOUNDS = {"by costs": 0, "32": 32, "all": 2**20}  # most prompt tokens between two tokens of a row; 0: by the costs
COPYING_ROWS = (1, 8)
COPIES, COPY_TOKENS, GUESSES = 24, 96, 16  # requests, the limit of each answer in tokens, the most guesses at once
DECODING_STEPS: dict[str, Column] = {
    "rows": "rows",
    "step ms": "step_ms:.2f",
    "without graphs ms": "without_graphs_ms:.2f",
    "without kernels ms": "without_kernels_ms:.2f",
    "reading ms": "reading_ms:.2f",
}
PREFIXES = shared_prefixes.COLUMNS
PROMPTS_JOINING: dict[str, Column] = {"tokens between steps": "prefill_tokens", **join_gaps.COLUMNS}
COPIES_GUESSED = {name: column for name, column in guessed_copies.COLUMNS.items() if name != "application"}


def decoding_steps(loaded: LoadedModel, batches: tuple[int, ...], clock: Clock) -> list[Json]:
    """Measure steps with and without the device's graphs and kernels, and the time to read weights and cache."""
    bytes_per_s, lines = bandwidth(loaded.device, clock), list[Json]()
    for rows in batches:
        line: Json = {"rows": rows, "step_ms": 1000 * step_s(loaded, rows, clock)}
        if loaded.repeats_passes:
            with without(loaded, "graphs"):
                line["without_graphs_ms"] = 1000 * step_s(loaded, rows, clock)
        if loaded.by_pages:
            with without(loaded, "graphs"), without(loaded, "kernels"):
                line["without_kernels_ms"] = 1000 * step_s(loaded, rows, clock)
        lines.append(line | {"reading_ms": 1000 * floor_s(loaded, rows, bytes_per_s)})
    return lines


def prefixes_shared(loaded: LoadedModel) -> list[Json]:
    """Serve requests of one instruction without the prefix cache and with it."""
    count, rows, *lengths = SHARING
    asked = shared_prefixes.of_one_instruction(loaded, count, *lengths)
    return shared_prefixes.compared(loaded, asked, rows, 1, perf_counter)


def prompts_joining(loaded: LoadedModel) -> list[Json]:
    """Let rows join running ones, under each bound on the prompt tokens prefilled between two tokens of a row."""
    rows, lengths, joiners, joins = JOINING
    return [
        {"prefill_tokens": name} | join_gaps.gaps(loaded, rows, [lengths] * joiners, joins, bound, perf_counter)
        for name, bound in BOUNDS.items()
    ]


def copies_guessed(device: str, dtype: Dtype, repeats: int) -> list[Json]:
    """Serve the toy applications, whose answers copy their inputs, without guesses and with them."""
    loaded = load_model(str(BUNDLED_MODEL), device, dtype)
    prompts = guessed_copies.encoded_prompts(None, load_prompt_format(str(BUNDLED_MODEL)), COPIES)
    asked = [
        DecodingRequest(str(number), prompt, COPY_TOKENS)
        for number, prompt in enumerate(islice(chain(*zip(*prompts.values(), strict=False)), COPIES))  # round robin
    ]
    return [
        {"rows": rows, **guessed_copies.compared(loaded, asked, rows, GUESSES, repeats, perf_counter)}
        for rows in COPYING_ROWS
    ]
