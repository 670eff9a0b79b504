"""Chooses longrope's frequencies by each row's own length; transformers chooses by the longest row of the batch.

longrope has short and long frequencies. `generate` takes the long ones for a whole prompt that is longer than the
original context, and for each later token that lies beyond it. Cached keys keep the frequencies with which they were
computed, except in the Phi-3 family: there a row is computed again as a whole when it passes the original context.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from inference.accelerator import copied_to

# The `prepare_inputs_for_generation` of these classes drops the cache when a row passes the original context.
COMPUTED_AGAIN = ("Phi3ForCausalLM", "Phi4MultimodalForCausalLM", "PhimoeForCausalLM")

Rotation = tuple[Tensor, Tensor]  # cosines and sines, [rows, tokens, dim]


class Longrope:
    """The original context of a model's longrope, and the rows of the prefill that is computed now."""

    def __init__(self, original_positions: int, computes_again: bool) -> None:
        self.original_positions, self.computes_again = original_positions, computes_again
        self.prompt_lengths: Tensor | None = None  # [rows, 1] in a prefill; None in a decoding step

    def passes_now(self, prompt_tokens: int, cached_tokens: int) -> bool:
        """Returns whether a row must be computed again before its next token."""
        original = self.original_positions
        return self.computes_again and cached_tokens == original and prompt_tokens <= original

    def per_row(self, rotation: Callable[..., Rotation]) -> Callable[..., Rotation]:
        """Returns a rotation that chooses the frequencies by row; `rotation` chooses by the largest position."""
        original = self.original_positions

        def rotate(x: Tensor, position_ids: Tensor, **options: Any) -> Rotation:
            given = self.prompt_lengths  # on the host; those of a step are on the device already, and cannot be pinned
            lengths = position_ids.max(-1, keepdim=True).values + 1 if given is None else copied_to(given, x.device)
            is_long = ((lengths > original) | (position_ids >= original))[..., None]
            beyond = position_ids.new_full((len(position_ids), 1), original)
            short = rotation(x, position_ids=position_ids.clamp(max=original - 1), **options)
            long = rotation(x, position_ids=torch.cat([position_ids, beyond], -1), **options)
            cos, sin = (torch.where(is_long, at[:, :-1], before) for at, before in zip(long, short, strict=True))
            return cos, sin

        return rotate


@contextmanager
def prefill_of(
    longrope: Longrope | None, prompt_lengths: Sequence[int], total_lengths: Sequence[int]
) -> Iterator[None]:
    """Tells longrope the lengths of the rows in a prefill: of the prompts alone, and with tokens generated before."""
    if longrope is None:
        yield
        return
    longrope.prompt_lengths = torch.tensor(total_lengths if longrope.computes_again else prompt_lengths)[:, None]
    try:
        yield
    finally:
        longrope.prompt_lengths = None


def rotate_by_row(model: Any) -> Longrope | None:
    """Replaces longrope's rotation in a model; returns None if the model has no longrope."""
    modules = [module for module in model.modules() if getattr(module, "rope_type", None) == "longrope"]
    if not modules:
        return None
    original = modules[0].config.rope_parameters["original_max_position_embeddings"]
    longrope = Longrope(original, type(model).__name__ in COMPUTED_AGAIN)
    for module in modules:
        module.forward = longrope.per_row(module.forward)
    return longrope
