"""Lets joining rows share the cached beginnings of earlier rows, so that each beginning is computed once.

The shared part consists of complete blocks, without a row's last token, whose logits choose the next one. On a CPU, a
row that joins running rows also copies the beginning of its next block if another row has it, since instructions are
often shorter than a block; a GPU computes so few tokens in less time than the copies of all layers take to begin. Rows
that need all logits of their prompts share nothing. Nor do rows of a model with windows, which write over their oldest
blocks, rows of a model with longrope, whose keys and values do not depend on tokens alone, and rows in a rectangle.
"""

from collections.abc import Iterable, Sequence
from itertools import dropwhile

from inference.local.batch_rows import PASS_TOKENS, BatchRow
from inference.local.kv.kv_cache import KvCache
from inference.local.kv.shared_prefixes import extend_keys, keys_of_parts
from inference.local.loading.model_loading import LoadedModel
from scheduling.batch_partition import groups_by_padding

# The most cached tokens, of all rows together, that attention copies in front of a prefill's own tokens: 50 MB a layer
# for SmolLM2 in float32. Not tuned.
MOST_GATHERED = 2**14


def shares_prefixes(loaded: LoadedModel) -> bool:
    """Returns whether rows of this model can share the beginnings of their prompts."""
    return loaded.fused and not loaded.layout.windows and loaded.longrope is None


class PrefixSharing:
    """Finds beginnings of joining rows in a cache, and keeps beginnings for later rows; does nothing unless `on`."""

    def __init__(self, kv: KvCache, on: bool) -> None:
        self._kv, self._on = kv, on
        self._copies = on and kv.layout.device.type == "cpu"

    def blocks(self, row: BatchRow) -> list[int]:
        """Returns the blocks that hold the beginning of a joining row."""
        prefixes = self._kv.arrangement.prefixes
        return [] if prefixes is None else prefixes.find(self._shareable(row))

    def tokens(self, row: BatchRow) -> int:
        """Returns how many tokens of a joining row its `blocks` hold."""
        return len(self.blocks(row)) * self._kv.arrangement.block_tokens

    def awaits(self, row: BatchRow, joining: Iterable[BatchRow]) -> bool:
        """Returns whether one of the rows that are joining computes blocks that this row could share."""
        missing = self._shareable(row)[len(self.blocks(row)) :]
        return bool(missing) and any(missing[0] in self._shareable(other) for other in joining)

    def keep(self, row: BatchRow, index: int, cached: int) -> None:
        """Lets later rows share the complete blocks of row `index`, with `cached` tokens, and after it has left."""
        at, prefixes = self._kv.arrangement, self._kv.arrangement.prefixes
        if self._on and prefixes is not None:
            tokens = row.token_ids[:cached]
            extend_keys(row.block_keys, tokens, row.sequence.prefix_salt, at.block_tokens)
            complete = row.block_keys[: len(tokens) // at.block_tokens]
            for number in prefixes.register(at.blocks_of(index), complete):
                if self._copies:
                    prefixes.register_parts(complete[number], self._parts(row, number, tokens))

    def copy_part(self, row: BatchRow, index: int) -> int:
        """Copies what another row has of the first block that row `index` does not share; returns how many tokens."""
        prefixes = self._kv.arrangement.prefixes
        if not self._copies or prefixes is None or row.sequence.prompt_logprobs:
            return 0
        number = len(self.blocks(row))
        block, tokens = prefixes.find_part(self._parts(row, number, row.token_ids))
        if tokens:
            self._kv.copy_tokens(block, self._kv.arrangement.blocks_of(index)[number], tokens)
        return tokens

    def _parts(self, row: BatchRow, number: int, tokens: Sequence[int]) -> list[bytes]:
        """Returns the keys of the beginnings of block `number` of these tokens, all without the block's last token."""
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
                for indices in groups_by_padding(lengths, PASS_TOKENS):
                    group = [rows_together[index] for index in indices]
                    most = max(1, MOST_GATHERED // max(1, *(cached[row] for row in group)))
                    groups += [group[at : at + most] for at in range(0, len(group), most)]
            computed = {key for row in now for key in missing[row]}
            missing = {row: [*dropwhile(computed.__contains__, missing[row])] for row in later}
        return groups

    def _shareable(self, row: BatchRow) -> list[bytes]:
        """Returns the keys of the blocks that a joining row may share."""
        at = self._kv.arrangement
        if not self._on or at.prefixes is None or row.sequence.prompt_logprobs:
            return []
        extend_keys(row.block_keys, row.token_ids, row.sequence.prefix_salt, at.block_tokens)
        return row.block_keys[: (len(row.token_ids) - 1) // at.block_tokens]
