"""Checks before serving that padded prefills and cached decoding give the model's own logits for each row alone."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from inference.accelerator import release_unused, to_device
from inference.local.forward.adapters import PLAIN_PASS, AdaptedPass, Adapters
from inference.local.forward.forward_pass import Cursor, decode_one_token, prefill
from inference.local.forward.fused_model import FusedModel
from inference.local.forward.longrope import Longrope, prefill_of
from inference.local.forward.step_graphs import Recorder, StepGraphs
from inference.local.kv.kv_budget import KvLayout
from inference.local.kv.kv_cache import KvCache
from inference.local.kv.pages import PageKernels
from inference.local.loading.checkpoint import one_line

SHORT = (3, 6)  # lengths of two rows that are shorter than any window and threshold
PAST = 3  # a row passes a threshold by this many tokens, so that the prefill and the decoding step are beyond it
# Names of the lengths in a configuration beyond which rows are computed differently: windows, chunks, original
# contexts, floors of a scale.
THRESHOLD = re.compile("window|chunk|original_max|floor_scale")
# On a CPU, rows beyond a threshold are checked if that takes at most this many operations, which are some ten seconds.
MOST_CPU_OPERATIONS = 10**12
ELSEWHERE = "another server may serve it, such as vLLM: magnus up --engine URL"


def row_dependence(config: Any, max_positions: int) -> str:
    """Returns in words why rows of this architecture depend on their neighbours, or "" if none is known."""
    window = getattr(config, "window_size", max_positions)
    if "local" in getattr(config, "attention_layers", ()) and window < max_positions:  # GPT-Neo
        return f"its window of {window} tokens is counted from the end of the batch's longest row; {ELSEWHERE}"
    kept = getattr(config, "keep_window_size", None)
    if kept is not None and kept < max_positions:  # Doge
        return f"beyond {kept} tokens a row attends by the length of the batch's longest row; {ELSEWHERE}"
    return ""


def checked_batches(model: Any, max_positions: int) -> list[list[list[int]]]:
    """Returns batches of prompts: two short ones, and for each threshold a short one beside one that passes it."""
    config = model.config.get_text_config()
    lengths = [SHORT]
    for threshold in sorted(set(_thresholds(config.to_dict()))):
        weights = model.num_parameters(exclude_embeddings=True)  # those that are multiplied with each token
        operations = 2 * weights * 5 * threshold  # one row by the model alone, two padded ones twice
        affordable = model.device.type != "cpu" or operations <= MOST_CPU_OPERATIONS
        if SHORT[-1] < threshold + PAST <= max_positions and affordable:
            lengths.append((SHORT[0], threshold + PAST))
    return [[_prompt(row, length, config.vocab_size) for row, length in enumerate(batch)] for batch in lengths]


@contextmanager
def unless_memory_lacks(batch: list[list[int]]) -> Iterator[None]:
    """Leaves out the check of a long row if the device lacks the memory for it."""
    try:
        yield
    except torch.OutOfMemoryError:
        if max(map(len, batch)) <= SHORT[-1]:
            raise
        release_unused()


def _thresholds(config: dict[str, Any]) -> Iterator[int]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _thresholds(value)
        elif type(value) is int and value > 0 and THRESHOLD.search(str(name)):
            yield value


def _prompt(row: int, length: int, vocabulary: int) -> list[int]:
    return [(7 * row + 3 * column + column // vocabulary) % vocabulary for column in range(length)]


def adapters_fault(decoder: Any, layout: KvLayout, longrope: Longrope | None, adapters: Adapters) -> str:
    """Compares a batch of rows of each adapter and of the model itself with each row alone; see `decoding_fault`.

    Layers whose inputs are not sorted by rows would add an adapter's products to other rows.
    """
    names = ["", *sorted(adapters.names), ""]
    vocabulary = decoder.config.get_text_config().vocab_size
    prompts = [_prompt(row, SHORT[row % len(SHORT)], vocabulary) for row in range(len(names))]
    own = []
    for name, prompt in zip(names, prompts, strict=True):
        with adapters.serve([name]):
            own.append(own_logits(decoder, prompt))
    return decoding_fault(decoder, layout, longrope, prompts, own, adapters.serve(names))


def let_read_pages(
    decoder: FusedModel,
    kernels: PageKernels,
    recorder: Recorder | None,
    layout: KvLayout,
    longrope: Longrope | None,
    prompts: list[list[int]],
    own: list[torch.Tensor],
) -> str:
    """Lets a decoder use a device's kernels, and repeat recorded passes, if that gives the model's own logits.

    Returns in words why it does not, or "".
    """
    checked = decoder, layout, longrope, prompts, own
    decoder.kernels = kernels
    if fault := _fault_of_steps(*checked):
        decoder.kernels = None
        return f"without kernels: {fault}"
    if recorder is not None:
        decoder.graphs = StepGraphs(recorder)
        if fault := _fault_of_steps(*checked):
            decoder.graphs = None
            return f"without graphs: {fault}"
    return ""


def reads_pages(decoder: Any) -> bool:
    """Returns whether a model's decoding steps read the KV cache by pages."""
    return isinstance(decoder, FusedModel) and decoder.kernels is not None


def _fault_of_steps(
    decoder: FusedModel,
    layout: KvLayout,
    longrope: Longrope | None,
    prompts: list[list[int]],
    own: list[torch.Tensor],
) -> str:
    """Returns the fault of two steps, in the first of which a graph is recorded, in the second repeated."""
    try:
        return decoding_fault(decoder, layout, longrope, prompts, own, steps=2)
    except Exception as error:  # the device may lack what a kernel needs, and some operation may not be recordable
        return one_line(error)


@torch.inference_mode()
def own_logits(model: Any, prompt: list[int]) -> torch.Tensor:
    """Returns the logits of the model's own forward pass over a prompt for its last two tokens, [2, vocabulary]."""
    logits: torch.Tensor = model(to_device([prompt], model.device), logits_to_keep=2).logits[0, -2:].float()
    return logits


@torch.inference_mode()
def decoding_fault(
    decoder: Any,
    layout: KvLayout,
    longrope: Longrope | None,
    prompts: list[list[int]],
    own: list[torch.Tensor],
    adapted: AdaptedPass = PLAIN_PASS,
    steps: int = 1,
) -> str:
    """Compares a padded prefill and cached decoding steps, two in all, with the model's own logits of each prompt.

    Returns in words that they differ by more than 0.001 of the largest logit in float32, or by a tenth of it in half
    precision; otherwise "". Rounding causes smaller differences; a wrong mask or wrong positions cause larger ones.
    Not tuned.
    """
    lengths = [*map(len, prompts)]
    budget_bytes = len(prompts) * (max(lengths) + 2) * layout.token_bytes
    for in_blocks in (False, True) if isinstance(decoder, FusedModel) and layout.alike else (False,):
        kv = KvCache(layout, budget_bytes, block_tokens=2, in_blocks=in_blocks, by_pages=reads_pages(decoder))
        kv.reserve(lengths)
        begun = [length - steps for length in lengths]
        with prefill_of(longrope, begun, begun):
            first = [prompt[:-steps] for prompt in prompts]
            ours = [prefill(decoder, kv, range(len(prompts)), first, pad_id=0, adapted=adapted)]
        cursor = Cursor.from_host(kv, [0] * len(prompts), begun, [True] * len(prompts))
        for step in range(steps):
            cursor.tokens = to_device([[prompt[step - steps]] for prompt in prompts], layout.device)
            with adapted:
                ours.append(decode_one_token(decoder, kv, cursor).clone())
        for row, expected in enumerate(own):
            for step, logits in enumerate(ours[-2:]):
                off = (logits[row].float() - expected[step]).abs().max() / expected[step].abs().max().clamp(min=1e-6)
                if not off < (1e-3 if layout.dtype == torch.float32 else 0.1):
                    of_what = f"of a row of {len(prompts[row])} tokens beside one of {lengths[row - 1]}"
                    return f"cached decoding {of_what} differs from its own forward pass by {off:.2g}; {ELSEWHERE}"
    return ""
