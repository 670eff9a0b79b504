"""Checks before serving that padded prefills and cached decoding give the model's own logits for each row alone."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from inference.accelerator import release_unused, to_device
from inference.local.forward.adapters import PLAIN_PASS, AdaptedPass, Adapters
from inference.local.forward.forward_pass import Cursor, decode_one_token, decode_several_tokens, prefill
from inference.local.forward.fused_model import FusedModel
from inference.local.forward.longrope import Longrope, prefill_of
from inference.local.forward.step_graphs import Recorder, StepGraphs
from inference.local.kv.kv_budget import KvLayout
from inference.local.kv.kv_cache import KvCache
from inference.local.kv.pages import PageKernels
from inference.local.kv.query_groups import token_rows
from inference.local.loading.checkpoint import one_line

SHORT = (3, 6)  # lengths of two rows that are shorter than any window and threshold
PAST = 3  # a row passes a threshold by this many tokens, so that the prefill and the decoding step are beyond it
# Names of the lengths in a configuration beyond which rows are computed differently: windows, chunks, original
# contexts, floors of a scale, the most tokens that an indexer chooses.
THRESHOLD = re.compile("window|chunk|original_max|floor|index_topk")
# On a CPU, rows beyond a threshold are checked if that takes at most this many operations, or some ten seconds.
MOST_CPU_OPERATIONS = 10**12
ELSEWHERE = "another server may serve it, such as vLLM: magnus up --engine URL"


def checked_batches(model: Any, max_positions: int) -> list[list[list[int]]]:
    """Returns batches of prompts: two short ones, and for each threshold a short one beside one that passes it."""
    vocabulary = model.config.get_text_config().vocab_size
    lengths = [SHORT]
    for threshold in thresholds(model, max_positions):
        weights = model.num_parameters(exclude_embeddings=True)  # these are multiplied with each token
        operations = 2 * weights * 5 * threshold  # the model computes one row, and the check two padded rows twice
        if model.device.type != "cpu" or operations <= MOST_CPU_OPERATIONS:
            lengths.append((SHORT[0], threshold + PAST))
    return [[_prompt(row, length, vocabulary) for row, length in enumerate(batch)] for batch in lengths]


def thresholds(model: Any, max_positions: int) -> list[int]:
    """Returns the lengths beyond which rows are computed differently, if the model has positions beyond them."""
    found = _thresholds(model.config.get_text_config().to_dict())
    return sorted({each for each in found if SHORT[-1] < each + PAST <= max_positions})


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


def reads_pages(decoder: Any) -> bool:
    """Returns whether a model's decoding steps read the KV cache by pages."""
    return isinstance(decoder, FusedModel) and decoder.kernels is not None


@torch.inference_mode()
def own_logits(model: Any, prompt: list[int]) -> torch.Tensor:
    """Returns the logits of the model's own forward pass over a prompt for its last two tokens, [2, vocabulary]."""
    logits: torch.Tensor = model(to_device([prompt], model.device), logits_to_keep=2).logits[0, -2:].float()
    return logits


@dataclass(frozen=True, slots=True)
class DecodingCheck:
    """Compares a model's decoding with the model's own logits of prompts.

    Each method returns in words what is wrong, or "" if nothing is wrong.
    """

    decoder: Any
    layout: KvLayout
    longrope: Longrope | None

    @torch.inference_mode()
    def fault(
        self, prompts: list[list[int]], own: list[torch.Tensor], adapted: AdaptedPass = PLAIN_PASS, steps: int = 1
    ) -> str:
        """Compares the last two passes: a padded prefill and a cached decoding step, or two decoding steps.

        Logits may differ by 0.002 of the largest in float32, and by a tenth of it in half precision. Rounding causes
        smaller differences (at most 0.0014 in models with random weights, in a Zamba 2); wrong masks and positions made
        0.057 or more. Not tuned otherwise.
        """
        lengths, by_pages = [*map(len, prompts)], reads_pages(self.decoder)
        budget_bytes = len(prompts) * (max(lengths) + 2) * self.layout.token_bytes
        for in_blocks in (False, True) if isinstance(self.decoder, FusedModel) and self.layout.alike else (False,):
            kv = KvCache(self.layout, budget_bytes, block_tokens=2, in_blocks=in_blocks, by_pages=by_pages)
            kv.reserve(lengths)
            begun = [length - steps for length in lengths]
            with prefill_of(self.longrope, begun, begun):
                first = [prompt[:-steps] for prompt in prompts]
                ours = [prefill(self.decoder, kv, range(len(prompts)), first, pad_id=0, adapted=adapted)]
            cursor = Cursor.of(kv, to_device([0] * len(prompts), self.layout.device), begun, [True] * len(prompts))
            for step in range(steps):
                cursor.tokens = to_device([[prompt[step - steps]] for prompt in prompts], self.layout.device)
                with adapted:
                    ours.append(decode_one_token(self.decoder, kv, cursor).clone())
            for step, logits in enumerate(ours[-2:]):
                if fault := self._difference(lengths, logits, [expected[step] for expected in own]):
                    return fault
        return ""

    def _difference(self, lengths: list[int], logits: torch.Tensor, own: list[torch.Tensor]) -> str:
        for row, expected in enumerate(own):
            off = (logits[row].float() - expected).abs().max() / expected.abs().max().clamp(min=1e-6)
            if not off < (2e-3 if self.layout.dtype == torch.float32 else 0.1):
                of_what = f"of a row of {lengths[row]} tokens beside one of {lengths[row - 1]}"
                return f"cached decoding {of_what} differs from its own forward pass by {off:.2g}; {ELSEWHERE}"
        return ""

    @torch.inference_mode()
    def _fault_of_parts(self, prompts: list[list[int]], own: list[torch.Tensor]) -> str:
        """Compares a pass over pages that computes all tokens of prompts but the first, the last one first."""
        lengths, rows = [*map(len, prompts)], range(len(prompts))
        kv = KvCache(
            self.layout, sum(lengths) * 2 * self.layout.token_bytes, block_tokens=2, in_blocks=True, by_pages=True
        )
        kv.reserve(lengths)
        prefill(self.decoder, kv, rows, [prompt[:1] for prompt in prompts], pad_id=0)
        places = [[length - 1, *range(1, length - 1)] for length in lengths]
        tokens = [prompts[row][places[row][place]] for row, place in token_rows([*map(len, places)])]
        logits = decode_several_tokens(self.decoder, kv, to_device(tokens, self.layout.device), places, rows)
        return self._difference(lengths, logits, [expected[-1] for expected in own])

    def fault_with(self, adapters: Adapters) -> str:
        """Compares a batch of rows of each adapter and of the model itself with each row alone.

        Layers whose inputs are not sorted by rows would add an adapter's products to other rows.
        """
        names = ["", *sorted(adapters.names), ""]
        vocabulary = self.decoder.config.get_text_config().vocab_size
        prompts = [_prompt(row, SHORT[row % len(SHORT)], vocabulary) for row in range(len(names))]
        own = []
        for name, prompt in zip(names, prompts, strict=True):
            with adapters.serve([name]):
                own.append(own_logits(self.decoder, prompt))
        return self.fault(prompts, own, adapters.serve(names))

    def let_read_pages(
        self, kernels: PageKernels, recorder: Recorder | None, prompts: list[list[int]], own: list[torch.Tensor]
    ) -> str:
        """Lets the decoder use a device's kernels, and repeat recorded passes, if that gives the model's own logits."""
        self.decoder.kernels = kernels
        if fault := self._fault_of_steps(prompts, own):
            self.decoder.kernels = None
            return f"without kernels: {fault}"
        if recorder is not None:
            self.decoder.graphs = StepGraphs(recorder)
            if fault := self._fault_of_steps(prompts, own):
                self.decoder.graphs = None
                return f"without graphs: {fault}"
        return ""

    def _fault_of_steps(self, prompts: list[list[int]], own: list[torch.Tensor]) -> str:
        """Compares two steps, of which the second repeats a graph if there are graphs, and parts of prompts."""
        try:
            return self.fault(prompts, own, steps=2) or self._fault_of_parts(prompts, own)
        except Exception as error:  # the device may lack what a kernel needs, and some operation may not be recordable
            return one_line(error)
