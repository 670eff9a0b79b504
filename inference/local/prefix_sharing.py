"""Lets joining rows share the cached beginnings of earlier rows, so that each beginning is computed once.

The shared part consists of complete blocks, and never of a row's last token, whose logits choose the next one. A row
that joins running ones on a CPU also copies the part of a block behind it that another row has, since instructions are
often shorter than a block; a GPU computes so few tokens in less time than the copies of all layers take to begin. Rows
that need all logits of their prompts compute everything. So do all rows of a model with windows, which write over their
oldest blocks, or with longrope, whose keys and values do not depend on the tokens alone, and all rows in a rectangle.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Several
from itertools import dropwhile

from inference.local.batch_rows import PASS_TOKENS, BatchRow, group_by_length
from inference.local.kv.kv_cache import KvCache
from inference.local.kv.shared_prefixes import extend_keys, keys_of_parts
from inference.local.loading.model_loading import LoadedModel

# The most cached tokens, of all rows together, that attention copies in front of those of a prefill: 50 MB a layer for
# SmolLM2 in float32. Not tuned.
MOST_GATHERED = 2**14


def shares_prefixes(loaded: LoadedModel) -> bool:
    """Returns whether rows of this model can share the beginnings of their prompts."""
    return loaded.fused and not loaded.layout.windows and loaded.longrope is None


class PrefixSharing:
    """Finds and leaves beginnings of rows in a cache; does nothing unless it is `on`."""

    def __init__(self, kv: KvCache, on: bool) -> None:
        self._kv, self._on = kv, on
        self._copies = on and kv.layout.device.type == "cpu"

    def blocks(self, row: BatchRow) -> list[int]:
        """Returns the blocks that hold the beginning of a joining row."""
        tables = self._kv.arrangement.tables
        return [] if tables is None else tables.prefixes.find(self._shareable(row))

    def tokens(self, row: BatchRow) -> int:
        """Returns how many tokens of a joining row those blocks hold."""
        return len(self.blocks(row)) * self._kv.arrangement.block_tokens

    def awaits(self, row: BatchRow, joining: Iterable[BatchRow]) -> bool:
        """Returns whether one of the rows that are joining computes blocks that this row could share."""
        missing = self._shareable(row)[len(self.blocks(row)) :]
        return bool(missing) and any(missing[0] in self._shareable(other) for other in joining)

    def keep(self, row: BatchRow, index: int) -> None:
        """Lets later rows share the complete blocks of row `index`, while it runs and after it has left."""
        tables = self._kv.arrangement.tables
        if self._on and tables is not None:
            tokens, size = row.token_ids[: row.cached_tokens], tables.block_tokens
            extend_keys(row.block_keys, tokens, row.sequence.prefix_salt, size)
            complete = row.block_keys[: len(tokens) // size]
            for number in tables.prefixes.register(tables.rows[index], complete):
                if self._copies:
                    tables.prefixes.register_parts(complete[number], self._parts(row, number, tokens))

    def copy_part(self, row: BatchRow, index: int) -> int:
        """Copies what another row has of the first block that row `index` does not share; returns how many tokens."""
        tables = self._kv.arrangement.tables
        if not self._copies or tables is None:
            return 0
        number = len(self.blocks(row))
        block, tokens = tables.prefixes.find_part(self._parts(row, number, row.token_ids))
        if tokens:
            self._kv.copy_tokens(block, tables.rows[index][number], tokens)
        return tokens

    def _parts(self, row: BatchRow, number: int, tokens: Several[int]) -> list[bytes]:
        """Returns the keys of the beginnings of one block of a row's tokens, none of which has the block's last one."""
        size = self._kv.arrangement.block_tokens
        of_block = tokens[number * size : (number + 1) * size]
        return keys_of_parts(row.block_keys, number, of_block, row.sequence.prefix_salt)

    def prefill_groups(self, rows: Iterable[BatchRow]) -> list[list[BatchRow]]:
        """Returns the groups in which joining rows are prefilled, each of similar length, in their order.

        If several rows have the same uncached beginning, one is prefilled first and the others share it, provided that
        they save more tokens than another forward pass costs.
        """
        groups: list[list[BatchRow]] = []
        size = self._kv.arrangement.block_tokens
        shareable = {row: self._shareable(row) for row in rows}
        missing = {row: keys[len(self.blocks(row)) :] for row, keys in shareable.items()}
        while missing:
            first_with: dict[bytes, BatchRow] = {}
            for row, keys in missing.items():
                first_with.setdefault(keys[0] if keys else b"", row)
            later = {row: first_with[keys[0]] for row, keys in missing.items() if keys}
            later = {row: first for row, first in later.items() if first is not row}
            saved = sum(len(set(missing[row]) & set(missing[first])) for row, first in later.items())
            if size * saved <= PASS_TOKENS:
                later = {}
            now = [row for row in missing if row not in later]
            cached = {row: size * (len(shareable[row]) - len(missing[row])) for row in now}
            for rows_together in ([row for row in now if not cached[row]], [row for row in now if cached[row]]):
                lengths = [len(row.token_ids) - cached[row] for row in rows_together]
                for group in group_by_length(rows_together, lengths):
                    most = max(1, MOST_GATHERED // max(1, *(cached[row] for row in group)))
                    groups += [group[at : at + most] for at in range(0, len(group), most)]
            computed = {key for row in now for key in missing[row]}
            missing = {row: [*dropwhile(computed.__contains__, missing[row])] for row in later}
        return groups

    def _shareable(self, row: BatchRow) -> list[bytes]:
        """Returns the keys of the blocks that a joining row may share."""
        tables = self._kv.arrangement.tables
        if not self._on or tables is None or row.sequence.prompt_logprobs:
            return []
        extend_keys(row.block_keys, row.token_ids, row.sequence.prefix_salt, tables.block_tokens)
        return row.block_keys[: (len(row.token_ids) - 1) // tables.block_tokens]
