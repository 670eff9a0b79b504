"""Runs passes over a batch's rows with their adapters: over prompts, one token of each row, or several of each row."""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from inference.accelerator import of_rows, to_device
from inference.local.batch_rows import BatchRow
from inference.local.forward.adapters import AdaptedPass
from inference.local.forward.forward_pass import Cursor, decode_one_token, decode_several_tokens, prefill
from inference.local.forward.longrope import prefill_of
from inference.local.kv.kv_cache import KvCache
from inference.local.kv.query_groups import token_rows
from inference.local.loading.model_loading import LoadedModel
from inference.local.next_tokens import keep_prompt_logprobs
from inference.local.pass_tokens import logits_of_rows, pass_tokens


class RowPasses:
    """Computes logits for rows 0, 1, ... of a cache; also keeps the prompts' log probabilities that rows ask for."""

    def __init__(self, loaded: LoadedModel, kv: KvCache) -> None:
        self._loaded, self._kv = loaded, kv
        self.cursor: Cursor | None = None  # None: rows joined, ended or moved since the last step
        # the rows of the last pass whose tokens the host has not read, and the tokens, [rows] on the device
        self.unread: tuple[Sequence[BatchRow], Tensor | None] = (), None

    def of_prompts(self, rows: Sequence[BatchRow], parts: Mapping[int, int]) -> Tensor:
        """Computes the next parts[i] tokens of row i's prompt, in a padded pass; returns the next tokens' logits.

        Rows that ask for their prompts' log probabilities are computed alone.
        """
        those = [rows[index] for index in parts]
        every = any(row.sequence.prompt_logprobs for row in those)
        if every and len(parts) > 1:
            return torch.cat([self.of_prompts(rows, {index: count}) for index, count in parts.items()])
        known, cached = [row.token_ids for row in those], [row.cached_tokens for row in those]
        prompts = [ids[: at + count] for ids, at, count in zip(known, cached, parts.values(), strict=True)]
        model, pad_id = self._loaded.decoder, self._loaded.pad_id
        of_prompts = [len(row.sequence.prompt_ids) for row in those]
        with prefill_of(self._loaded.longrope, of_prompts, [*map(len, known)]):
            logits = prefill(model, self._kv, [*parts], prompts, pad_id, cached, adapted=self._of(those), every=every)
        if not every:
            return logits
        keep_prompt_logprobs(those[0], logits, cached[0])
        return logits[-1:]

    def of_newest(self, rows: Sequence[BatchRow]) -> tuple[Tensor, int]:
        """Computes each row's newest token; returns the next tokens' logits, and the columns of the longest row."""
        cursor = self.cursor = self.cursor or Cursor.of(
            self._kv,
            tokens=self._on_device([row.newest for row in rows], rows),
            positions=[row.cached_tokens for row in rows],
            running=[row.decodes for row in rows],
        )
        with self._of(rows):
            return decode_one_token(self._loaded.decoder, self._kv, cursor), cursor.width

    def follow(self, tokens: Tensor) -> None:
        """Lets the next `of_newest` compute these tokens; if some row has none, the cursor is made anew."""
        if self.cursor is not None and len(tokens) == len(self.cursor.tokens):
            self.cursor.tokens = tokens[:, None]
        else:
            self.cursor = None

    def of_several(
        self, rows: Sequence[BatchRow], parts: Mapping[int, int], guesses: Sequence[Sequence[int]]
    ) -> tuple[Tensor, list[list[int]]]:
        """Computes the rows' newest tokens with guesses behind them, and the next parts[i] tokens of row i's prompt.

        Returns logits, and which of them belong to each row's newest token and to its guesses.
        """
        tokens, places = pass_tokens(rows, guesses, parts)
        firsts_only: Collection[int] = {index for index in parts if not rows[index].sequence.prompt_logprobs}
        with self._of([rows[row] for row, _ in token_rows([*map(len, tokens)])]):
            ids = self._on_device([tokens[row][place] for row, place in token_rows([*map(len, tokens)])], rows)
            logits = decode_several_tokens(self._loaded.decoder, self._kv, ids, places, firsts_only)
        at, self.cursor = logits_of_rows(tokens, firsts_only), None
        for index in parts.keys() - firsts_only:
            row, in_order = rows[index], [*at[index][1:], at[index][0]]
            keep_prompt_logprobs(row, of_rows(logits, in_order), row.cached_tokens)
        return logits, at

    def _on_device(self, tokens: Sequence[int], rows: Sequence[BatchRow]) -> Tensor:
        """Returns the tokens of a pass on the device; the first ones are the newest of `rows`, read or not."""
        on_device = to_device(tokens, self._kv.layout.device)
        of_rows_ahead, unread = self.unread
        ahead = [index for index, row in enumerate(rows) if row.ahead]
        if unread is not None and ahead:
            places = {row: place for place, row in enumerate(of_rows_ahead)}
            found = of_rows(unread, [places[rows[index]] for index in ahead])
            on_device.index_copy_(0, to_device(ahead, on_device.device), found)
        return on_device

    def _of(self, rows: Sequence[BatchRow]) -> AdaptedPass:
        return self._loaded.adapters.serve([row.sequence.adapter for row in rows])
