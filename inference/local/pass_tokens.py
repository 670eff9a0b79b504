"""Lists each row's tokens in a pass over blocks: its newest token and guesses of the next, or a part of its prompt."""

from collections.abc import Collection, Mapping, Sequence

from inference.local.batch_rows import BatchRow
from inference.local.guessed_tokens import Guessing
from inference.local.kv.kv_cache import KvCache


def guessed_tokens(rows: Sequence[BatchRow], kv: KvCache, guessing: Guessing) -> list[list[int]]:
    """Returns guesses of each row's next tokens, as far as limit and blocks allow; none if the cache is a rectangle."""
    if not kv.in_blocks or not guessing.begins(sum(row.running for row in rows)):
        return []
    left = [
        min(row.limit - len(row.generated), kv.arrangement.room(index) - row.cached_tokens) - 1
        for index, row in enumerate(rows)
    ]
    return guessing.guesses([row.copied_text() if row.running and not row.unjoined else None for row in rows], left)


def prompt_parts(rows: Sequence[BatchRow], most: int) -> dict[int, int]:
    """Returns by index how many tokens a pass computes of each joining row: `most` of all together, or one of each.

    The shortest rest of a prompt comes first, and half of a pass is for the longest: neither waits for the other.
    """
    parts, joining = dict[int, int](), sorted((row.unjoined, index) for index, row in enumerate(rows) if row.unjoined)
    kept = most // 2 if joining and joining[-1][0] > most else 0
    for place, (unjoined, index) in enumerate(joining, start=1):
        parts[index] = max(1, min(unjoined, most - (kept if place < len(joining) else 0)))
        most -= parts[index]
    return parts


def pass_tokens(
    rows: Sequence[BatchRow], guesses: Sequence[Sequence[int]], parts: Mapping[int, int]
) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the tokens that a pass computes for each row, and their positions.

    A row's next token is sampled from the output of its first token here. So the last token of a prompt's part is
    listed first, and a running row's newest token is listed before its guesses.
    """
    tokens, positions = list[list[int]](), list[list[int]]()
    for index, (row, guess) in enumerate(zip(rows, guesses, strict=True)):
        begun = row.cached_tokens
        own = [*row.token_ids[begun : begun + parts[index]]] if index in parts else [row.newest, *guess]
        at = [*range(begun, begun + len(own))]
        if index in parts:
            own, at = [own[-1], *own[:-1]], [at[-1], *at[:-1]]
        tokens.append(own)
        positions.append(at)
    return tokens, positions


def logits_of_rows(tokens: Sequence[Sequence[int]], firsts_only: Collection[int]) -> list[list[int]]:
    """Returns which logits of `decode_several_tokens` belong to each row's tokens, those of its first token first."""
    numbers, taken = [[row] for row in range(len(tokens))], len(tokens)
    for row, own in enumerate(tokens):
        if row not in firsts_only:
            numbers[row] += range(taken, taken + len(own) - 1)
            taken += len(own) - 1
    return numbers
