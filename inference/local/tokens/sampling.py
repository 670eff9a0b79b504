"""Chooses tokens from logits: greedily, or by temperature, top-k and top-p with random numbers of each row's seed."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inference.accelerator import of_rows, to_device, to_host
from request_body import Sampling

# Truncation first considers this number of the likeliest tokens: for 32 rows of 1,280 scores it takes 0.6 ms, and 2.1
# ms if it sorts all scores.
CANDIDATES = 64
# A device finds more as fast, and the host must wait for a row whose truncation needs still more. Not tuned.
CANDIDATES_OF_DEVICES = 1024
HIGHEST = torch.finfo(torch.float32).max


def uniform_numbers(sampling: Sampling, limit: int) -> list[float]:
    """Returns a row's random numbers in [0, 1); its k-th token is always sampled with the k-th number of its seed.

    So its text depends neither on other rows of the batch nor on slicing and preemption.
    """
    numbers: list[float] = np.random.default_rng(sampling.seed).random(limit).tolist()
    return numbers


def greedy(logits: Tensor) -> Tensor:
    """Returns the likeliest token of each row, [rows]; the first one among equals."""
    if logits.device.type == "cpu":
        ids: np.ndarray[Any, np.dtype[np.int64]] = logits.float().numpy().argmax(-1)
        # numpy takes 8 µs where torch takes 385 µs (float32, 16 rows, a vocabulary of 8,192), and 0.8 ms of CPU time
        # where torch takes 6.9 ms (bfloat16, 36 rows, a vocabulary of 49,152)
        return torch.from_numpy(ids)
    return logits.argmax(-1)


def sample(
    logits: Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float], decided: Tensor | None = None
) -> Tensor:
    """Samples a token for each row, [rows], by the inverse of its cumulative distribution at its number in [0, 1).

    Applies temperature, min-p as vLLM does, top-k, then top-p as transformers does. A token whose logit is minus
    infinity or NaN is drawn only if its row has no other logits. With `decided`, [rows] of bool, rows whose truncation
    needs more than a number of candidates become False there, and get an arbitrary token; no host waits for them.
    """
    temperatures = to_device([min(s.temperature, HIGHEST) for s in samplings], logits.device)
    scores = below_the_likeliest(logits) / temperatures[:, None]
    if any(s.min_p for s in samplings):  # scores are relative to the likeliest token's, which is 0
        floors = to_device([math.log(s.min_p) if s.min_p else -math.inf for s in samplings], logits.device)
        scores.masked_fill_(scores < floors[:, None], -torch.inf)
    truncated = [row for row, s in enumerate(samplings) if s.top_k or s.top_p < 1]
    if truncated:  # sorting a vocabulary costs more than everything else here
        at = to_device(truncated, scores.device)
        own, those = scores.index_select(0, at), [samplings[row] for row in truncated]
        if decided is None:
            scores.index_copy_(0, at, truncate(own, those))
        else:
            likeliest, enough = _truncate_among(own, those, CANDIDATES_OF_DEVICES)
            scores.index_copy_(0, at, likeliest)
            decided.index_copy_(0, at, enough)
    probabilities = scores.softmax(dim=-1)
    cumulative = probabilities.cumsum(dim=-1, dtype=torch.float64)
    above_zero = 1 - to_device(uniforms, logits.device, torch.float64)[:, None]
    tokens = torch.searchsorted(cumulative, above_zero * cumulative[:, -1:]).clamp_(max=logits.shape[-1] - 1)
    # parallel sums on a GPU may decrease by a rounding error, and the search may then end at an impossible token
    return torch.where(probabilities.gather(-1, tokens) > 0, tokens, scores.argmax(-1, keepdim=True))[:, 0]


def below_the_likeliest(logits: Tensor) -> Tensor:
    """Returns the logits in float32 minus the largest of their row, so that no temperature makes them overflow.

    NaN counts as minus infinity; a row without finite logits becomes zeros.
    """
    scores = logits.float().nan_to_num(nan=-torch.inf, posinf=HIGHEST, neginf=-torch.inf)
    return (scores - scores.amax(-1, keepdim=True)).nan_to_num_(nan=0.0, neginf=-torch.inf)


def truncate(scores: Tensor, samplings: Sequence[Sampling], candidates: int = CANDIDATES) -> Tensor:
    """Sets scores [rows, vocabulary] outside each row's top-k and top-p to minus infinity.

    Sorts all scores of a row only if both its top-k and its top-p have more than `candidates` tokens.
    """
    truncated, decided = _truncate_among(scores, samplings, candidates)
    undecided = [row for row, enough in enumerate(to_host(decided)) if not enough]
    if undecided:
        those = [samplings[row] for row in undecided]
        sorted_whole, _ = _truncate_among(of_rows(scores, undecided), those, scores.shape[-1])
        truncated.index_copy_(0, to_device(undecided, scores.device), sorted_whole)
    return truncated


def _truncate_among(scores: Tensor, samplings: Sequence[Sampling], candidates: int) -> tuple[Tensor, Tensor]:
    """Returns the truncated scores and whether `candidates` tokens were enough for each row, [rows]."""
    vocabulary = scores.shape[-1]
    candidates = min(candidates, vocabulary)
    ordered, order = scores.topk(candidates, dim=-1)
    rank = torch.arange(candidates, device=scores.device)
    top_k = to_device([s.top_k or vocabulary for s in samplings], scores.device)[:, None]
    top_p = to_device([s.top_p for s in samplings], scores.device)[:, None]
    ordered.masked_fill_(rank >= top_k, -torch.inf)
    holds_top_k = top_k <= candidates
    mass = torch.where(holds_top_k, ordered.logsumexp(-1, keepdim=True), scores.logsumexp(-1, keepdim=True))
    probabilities = (ordered - mass).exp()
    beyond = probabilities.cumsum(dim=-1) - probabilities >= top_p
    ordered.masked_fill_(beyond & (rank > 0), -torch.inf)
    enough = holds_top_k[:, 0] | beyond[:, -1] | (candidates == vocabulary)
    return torch.full_like(scores, -torch.inf).scatter_(-1, order, ordered), enough
