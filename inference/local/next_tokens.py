"""Chooses the next token of each row: applies penalties and formats to the logits, then samples.

Rows without penalties or formats cost nothing here, and get the tokens that they would get alone.
"""

from collections.abc import Collection, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from inference.accelerator import copied_to, of_rows, to_device, to_host
from inference.engine_requests import LEAST_LOGPROB, TokenLogprob
from inference.local.batch_rows import BatchRow
from inference.local.tokens.sampling import below_the_likeliest, greedy, sample


def next_tokens(
    logits: Tensor,
    rows: Sequence[BatchRow],
    eos_ids: frozenset[int],
    suppressed_ids: Sequence[int] = (),
    decided: Tensor | None = None,
) -> Tensor:
    """Returns the next token of each row, [rows], for logits [rows, vocabulary]; finished rows get an arbitrary one.

    No row gets one of the `suppressed_ids`. Log probabilities are the model's own: they are taken before suppressed
    tokens, penalties and formats change the logits. `decided` is that of `sample`.
    """
    asking = [index for index, row in enumerate(rows) if row.asks_of_logits and row.running]
    with_logprobs = [index for index in asking if rows[index].sequence.top_logprobs is not None]
    changed = [index for index in asking if _changes_logits(rows[index])]
    unchanged = of_rows(logits, with_logprobs) if with_logprobs else logits
    if suppressed_ids:
        logits.index_fill_(1, _on_device(tuple(suppressed_ids), logits.device), -torch.inf)
    if changed:
        at = to_device(changed, logits.device)
        those = [rows[index] for index in changed]
        logits.index_copy_(0, at, adjusted(logits.index_select(0, at), those, eos_ids).to(logits.dtype))
    tokens = greedy(logits)
    sampled = [index for index, row in enumerate(rows) if row.uniforms and row.decodes]
    if sampled:
        those = [rows[index] for index in sampled]
        uniforms = [row.uniforms[row.computed] for row in those]
        at = to_device(sampled, logits.device)
        known = None if decided is None else decided.index_select(0, at)
        found = sample(logits.index_select(0, at), [row.sequence.sampling for row in those], uniforms, known)
        tokens.index_copy_(0, at, found)
        if decided is not None and known is not None:
            decided.index_copy_(0, at, known)
    thinking = [(index, rows[index]) for index in asking if rows[index].thinking]
    if forced := _forced_tokens(tokens, logits, thinking, eos_ids):
        given = to_device([*forced.values()], logits.device, tokens.dtype)
        tokens.index_copy_(0, to_device([*forced], logits.device), given)
    _lead_to_endings(tokens, [(index, rows[index]) for index in changed if rows[index].matcher], eos_ids)
    if with_logprobs:
        chosen = to_host(of_rows(tokens, with_logprobs))
        wanted = [rows[index].sequence.top_logprobs or 0 for index in with_logprobs]
        for index, logprob in zip(with_logprobs, log_probabilities(unchanged, chosen, wanted), strict=True):
            rows[index].logprobs.append(logprob)
    return tokens


def _forced_tokens(
    tokens: Tensor, logits: Tensor, thinking: Sequence[tuple[int, BatchRow]], eos_ids: frozenset[int]
) -> dict[int, int]:
    """Returns the tokens that end the thinking of rows, by index, except where a row's format has ended it already.

    An answer that would end right behind its thinking gets the likeliest token that does not end it.
    """
    if not thinking:
        return {}
    chosen = to_host(tokens if len(thinking) == len(tokens) else of_rows(tokens, [index for index, _ in thinking]))
    found = {}
    for (index, row), own in zip(thinking, chosen, strict=True):
        forced = row.thinking.forced_token(row.generated) if row.thinking else None
        if forced is None:
            forced = row.thinks_on(own, eos_ids)
        if forced is None and row.lacks_answer(own, eos_ids):
            scores = logits[index].clone()
            forced = int(scores.index_fill_(0, _ids(row.ends(eos_ids), scores), -torch.inf).argmax())
        if forced is not None and (row.matcher is None or row.matcher.allows(forced)):
            found[index] = forced
    return found


def _changes_logits(row: BatchRow) -> bool:
    asked = row.sequence.sampling
    return row.matcher is not None or asked.changes_every_token or len(row.generated) < asked.min_tokens


def _lead_to_endings(tokens: Tensor, held: Sequence[tuple[int, BatchRow]], eos_ids: frozenset[int]) -> None:
    """Replaces the tokens of `held` rows, by index, behind which the limit leaves no space for a valid ending."""
    if not held:
        return
    chosen = to_host(tokens if len(held) == len(tokens) else of_rows(tokens, [index for index, _ in held]))
    fitting = [
        row.matcher.fitting(token, row.limit - len(row.generated))
        if row.matcher is not None and token not in row.ends(eos_ids)
        else token
        for (_, row), token in zip(held, chosen, strict=True)
    ]
    if fitting != chosen:
        at = to_device([index for index, _ in held], tokens.device)
        tokens.index_copy_(0, at, to_device(fitting, tokens.device, tokens.dtype))


def adjusted(logits: Tensor, rows: Sequence[BatchRow], eos_ids: frozenset[int]) -> Tensor:
    """Returns the logits in float32 with biases and penalties, and with forbidden tokens at minus infinity.

    Biases come before penalties, as in vLLM. If the matcher of a row fails or allows no token, `BatchRow.append`
    refuses the row.
    """
    scores = logits.float()
    for row, own in zip(rows, scores, strict=True):
        asked = row.sequence.sampling
        if asked.logit_bias:
            own.index_add_(0, *_biases(row, own))
        if asked.repetition_penalty != 1:
            own.copy_(penalised(own, _seen(row, own), asked.repetition_penalty))
        if asked.counts_tokens:
            counts = _counts(row, own)
            own -= asked.frequency_penalty * counts + asked.presence_penalty * (counts > 0)
        if len(row.generated) < asked.min_tokens:
            own.index_fill_(0, _ids(row.ends(eos_ids), own), -torch.inf)
        if row.matcher is not None:
            own.masked_fill_(copied_to(~row.matcher.allowed_tokens(len(own)), own.device), -torch.inf)
    return scores


def penalised(scores: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Returns scores [vocabulary] with transformers' repetition penalty on the tokens that were `seen`."""
    # in float64, in which no float32 penalty makes a logit overflow or underflow
    lower = torch.where(scores < 0, scores.double() * penalty, scores.double() / penalty).clamp_(-1e38, 1e38)
    return torch.where(seen & scores.isfinite(), lower.float(), scores)


def _biases(row: BatchRow, scores: Tensor) -> tuple[Tensor, Tensor]:
    if row.biases is None:
        known = [one for one in row.sequence.sampling.logit_bias if one[0] < len(scores)]
        ids, added = ([one[part] for one in known] for part in (0, 1))
        row.biases = to_device(ids, scores.device, torch.long), to_device(added, scores.device, torch.float32)
    return row.biases


def _seen(row: BatchRow, scores: Tensor) -> Tensor:
    if row.seen is None:
        row.seen = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
        row.seen.index_fill_(0, _ids(set(row.token_ids), scores), True)
    return row.seen


def _counts(row: BatchRow, scores: Tensor) -> Tensor:
    if row.counts is None:
        ids = torch.tensor(_within(row.generated, len(scores)), dtype=torch.long)
        row.counts = copied_to(ids.bincount(minlength=len(scores)).float(), scores.device)
    return row.counts


def _within(ids: Collection[int], vocabulary: int) -> list[int]:
    return [one for one in ids if one < vocabulary]


def _ids(ids: Collection[int], scores: Tensor) -> Tensor:
    return to_device(_within(ids, len(scores)), scores.device, torch.long)


@lru_cache(maxsize=8)  # one process may serve this many models by turns
def _on_device(ids: tuple[int, ...], device: torch.device) -> Tensor:
    return to_device(ids, device)


def log_probabilities(logits: Tensor, tokens: Sequence[int], wanted: Sequence[int]) -> list[TokenLogprob]:
    """Returns the log probability of tokens[i] by logits[i] and the wanted[i] likeliest tokens, likeliest first."""
    known = below_the_likeliest(logits).log_softmax(-1).clamp_(min=LEAST_LOGPROB)
    values, ids = known.topk(min(max(wanted, default=0), known.shape[-1]), dim=-1)
    chosen = to_host(known.gather(1, to_device(tokens, known.device)[:, None])[:, 0])
    return [
        TokenLogprob(token, value, tuple(zip(those[:top], likely[:top], strict=True)))
        for token, value, those, likely, top in zip(tokens, chosen, to_host(ids), to_host(values), wanted, strict=True)
    ]


def keep_prompt_logprobs(row: BatchRow, logits: Tensor, first: int) -> None:
    """Adds the log probabilities of the prompt's tokens behind `first`, which the rows of `logits` predict in order."""
    asked = row.sequence.prompt_ids[first + 1 : first + 1 + len(logits)]
    known = log_probabilities(logits[: len(asked)], asked, [row.sequence.top_logprobs or 0] * len(asked))
    before = row.prompt_logprobs if first else (TokenLogprob(row.sequence.prompt_ids[0], 0.0),)
    row.prompt_logprobs = (*before, *known)
