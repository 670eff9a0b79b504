"""The next token of each row: what rows ask for is done to their logits, then they are sampled.

Rows that ask for nothing special cost nothing, and get the tokens that they would get alone.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from inference.local.batch_rows import BatchRow
from inference.local.logits.format_masks import allowed_tokens
from inference.local.sampling import below_the_likeliest, greedy, sample
from inference.sequences import TokenLogprob

# Of a token that cannot come; JSON has no infinity, and vLLM has the same bound.
LEAST_LOGPROB = -9999.0


def next_tokens(logits: Tensor, rows: Sequence[BatchRow], eos_ids: frozenset[int]) -> Tensor:
    """The next token of each row, [rows], from logits [rows, vocabulary]; those of finished rows mean nothing.

    Log probabilities, where they are wanted, are those of the model, before anything is ruled out.
    """
    asking = [index for index, row in enumerate(rows) if row.asks_of_logits and row.running]
    told = [index for index in asking if rows[index].sequence.top_logprobs is not None]
    changed = [index for index in asking if _changes_logits(rows[index])]
    models_own = logits[told] if told else logits
    if changed:
        logits[changed] = adjusted(logits[changed], [rows[index] for index in changed], eos_ids).to(logits.dtype)
    tokens = greedy(logits)
    sampled = [index for index, row in enumerate(rows) if row.uniforms and row.running]
    if sampled:
        those = [rows[index] for index in sampled]
        uniforms = [row.uniforms[len(row.generated)] for row in those]
        tokens[sampled] = sample(logits[sampled], [row.sequence.sampling for row in those], uniforms)
    if told:
        chosen = tokens[told].tolist()
        wanted = [rows[index].sequence.top_logprobs or 0 for index in told]
        for index, logprob in zip(told, log_probabilities(models_own, chosen, wanted), strict=True):
            rows[index].logprobs.append(logprob)
    return tokens


def _changes_logits(row: BatchRow) -> bool:
    asked = row.sequence
    return row.matcher is not None or asked.sampling.repetition_penalty != 1 or len(row.generated) < asked.min_tokens


def adjusted(logits: Tensor, rows: Sequence[BatchRow], eos_ids: frozenset[int]) -> Tensor:
    """The logits in float32 with repetitions made less likely, and what may not come next at minus infinity.

    A row whose format leaves no token, or whose matcher gives up, keeps its logits; `append` refuses it then.
    """
    scores = logits.float()
    for row, own in zip(rows, scores, strict=True):
        penalty = row.sequence.sampling.repetition_penalty
        if penalty != 1:
            own.copy_(penalised(own, _seen(row, own), penalty))
        if len(row.generated) < row.sequence.min_tokens:
            own[_within(row.ends(eos_ids), len(own))] = -torch.inf
        if row.matcher is not None:
            own.masked_fill_(~allowed_tokens(row.matcher, len(own)).to(own.device), -torch.inf)
    return scores


def penalised(scores: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Scores [vocabulary] with those of the tokens that were `seen` made less likely, as transformers does it."""
    # in float64, where no penalty that float32 holds makes a logit overflow or vanish
    lower = torch.where(scores < 0, scores.double() * penalty, scores.double() / penalty).clamp_(-1e38, 1e38)
    return torch.where(seen & scores.isfinite(), lower.float(), scores)


def _seen(row: BatchRow, scores: Tensor) -> Tensor:
    if row.seen is None:
        row.seen = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
        row.seen[_within(set(row.token_ids), len(scores))] = True
    return row.seen


def _within(ids: Collection[int], vocabulary: int) -> list[int]:
    return [one for one in ids if one < vocabulary]


def log_probabilities(logits: Tensor, tokens: Sequence[int], wanted: Sequence[int]) -> list[TokenLogprob]:
    """The log probability of a token at each place, logits [places, vocabulary], and those `wanted` most likely there.

    The likeliest tokens are in the order of their probabilities.
    """
    known = below_the_likeliest(logits).log_softmax(-1).clamp_(min=LEAST_LOGPROB)
    values, ids = known.topk(min(max(wanted, default=0), known.shape[-1]), dim=-1)
    chosen = known[range(len(tokens)), list(tokens)].tolist()
    return [
        TokenLogprob(token, value, tuple(zip(those[:top], likely[:top], strict=True)))
        for token, value, those, likely, top in zip(tokens, chosen, ids.tolist(), values.tolist(), wanted, strict=True)
    ]
