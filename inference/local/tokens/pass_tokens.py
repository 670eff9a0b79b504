"""Lists each row's tokens in a pass over blocks: its newest token and guesses of the next, or a part of its prompt."""

from collections.abc import Mapping, Sequence

from inference.local.batch_rows import BatchRow
from inference.local.kv.block_tables import BlockTables
from inference.local.tokens.guessed_tokens import Guessing


def guessed_tokens(rows: Sequence[BatchRow], tables: BlockTables | None, guessing: Guessing) -> list[list[int]]:
    """Returns guesses of each row's next tokens, as far as limit and blocks allow; none in a rectangle."""
    if tables is None or not guessing.begins(sum(row.running for row in rows)):
        return []
    left = [
        min(row.limit - len(row.generated), tables.room(index) - row.cached_tokens) - 1
        for index, row in enumerate(rows)
    ]
    return guessing.guesses([row.copied_text() if row.running and not row.unjoined else None for row in rows], left)


def prompt_parts(rows: Sequence[BatchRow], most: int) -> dict[int, int]:
    """Returns by index how many tokens a pass computes of each joining row: `most` of all together, or one of each."""
    parts: dict[int, int] = {}
    for index, row in enumerate(rows):
        if row.unjoined:
            parts[index] = max(1, min(row.unjoined, most))
            most -= parts[index]
    return parts


def pass_tokens(
    rows: Sequence[BatchRow], guesses: Sequence[Sequence[int]], parts: Mapping[int, int]
) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the tokens that a pass computes for each row, and their positions.

    The row's next token is sampled from the output of its first one, so the last token of a prompt's part comes first;
    a running row's newest token stands before its guesses.
    """
    tokens, positions = list[list[int]](), list[list[int]]()
    for index, (row, guess) in enumerate(zip(rows, guesses, strict=True)):
        own = row.next_part(parts[index]) if index in parts else [row.generated[-1], *guess]
        at = [*range(row.cached_tokens, row.cached_tokens + len(own))]
        if index in parts:
            own, at = [own[-1], *own[:-1]], [at[-1], *at[:-1]]
        tokens.append(own)
        positions.append(at)
    return tokens, positions
