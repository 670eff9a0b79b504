"""The cursor of a decoding step, prefills behind cached tokens, and passes of several tokens."""

import pytest
import torch

from inference.local.forward.forward_pass import MOST_MASK, Cursor, decode_one_token, decode_several_tokens, prefill
from inference.local.kv.kv_cache import KvCache
from inference.local.kv.query_groups import token_rows


@pytest.mark.parametrize("most_mask", [MOST_MASK, 0])  # of all rows together, and row by row
@pytest.mark.parametrize(
    ("lengths", "cached"),
    [
        ([30, 17, 13, 9], [12, 12, 12, 0]),
        ([29, 41], [28, 40]),  # one token is left
        ([60, 9], [4, 8]),
        ([9], [8]),
    ],
)
def test_a_prefill_behind_cached_tokens_computes_what_a_whole_one_does(llama, lengths, cached, most_mask):
    prompts = [tuple(9 + (n * length) % 50 for n in range(length)) for length in lengths]
    rows, model = range(len(prompts)), llama.loaded.decoder
    whole, behind = (KvCache(llama.loaded.layout, 2**20, block_tokens=4, in_blocks=True) for _ in range(2))
    with torch.inference_mode():
        whole.reserve(lengths)
        expected = prefill(model, whole, rows, prompts, 0)
        behind.reserve(lengths)
        begun = [row for row in rows if cached[row]]
        prefill(model, behind, begun, [prompts[row][: cached[row]] for row in begun], 0)
        logits = prefill(model, behind, rows, prompts, 0, cached, most_mask)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
        for row, length in enumerate(lengths):
            for sides in zip(whole.row_copy(row, length), behind.row_copy(row, length), strict=True):
                for one, other in zip(*sides, strict=True):
                    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def numbered(tokens):
    return torch.tensor([tokens[row][place] for row, place in token_rows([*map(len, tokens)])])


@pytest.mark.parametrize("counts", [(1, 3, 1), (4, 2, 1), (3, 3, 3), (1, 20, 2)])  # those of the last attend apart
def test_one_pass_of_several_tokens_gives_what_as_many_passes_give(llama, counts):
    prompts = [list(answered.prompt_ids) for answered in llama.pool[:3]]
    coming = [[*range(first, first + 20)] for first in (9, 13, 17)]
    logits = []
    with torch.inference_mode():
        for several in (True, False):
            kv = KvCache(llama.loaded.layout, 2**20, block_tokens=4, in_blocks=True)
            kv.reserve([len(prompt) + 20 for prompt in prompts])
            prefill(llama.loaded.decoder, kv, range(3), prompts, 0)
            begun = [*map(len, prompts)]
            if several:
                tokens = [own[:count] for own, count in zip(coming, counts, strict=True)]
                places = [[*range(start, start + count)] for start, count in zip(begun, counts, strict=True)]
                logits.append(decode_several_tokens(llama.loaded.decoder, kv, numbered(tokens), places))
            else:
                steps = []
                for place in range(max(counts)):
                    at, newest = [start + place for start in begun], [own[place] for own in coming]
                    cursor = Cursor.of(kv, torch.tensor(newest), at, [True] * 3)
                    steps.append(decode_one_token(llama.loaded.decoder, kv, cursor))
                logits.append(torch.stack(steps))
    found, one_by_one = logits
    for own, (row, place) in zip(found, token_rows(counts), strict=True):
        torch.testing.assert_close(own, one_by_one[place, row], rtol=1e-3, atol=1e-3)


def test_a_rows_tokens_may_come_in_any_order_and_those_behind_its_first_may_be_dropped(llama):
    prompts, logits = [list(answered.prompt_ids) for answered in llama.pool[:3]], []
    ordered = [[9], [10, 11, 12, 13, 14], [15, 16]]
    for last_first in (False, True):
        kv = KvCache(llama.loaded.layout, 2**20, block_tokens=4, in_blocks=True)
        tokens = [list(own) for own in ordered]
        places = [[len(prompt) + n for n in range(len(own))] for prompt, own in zip(prompts, tokens, strict=True)]
        if last_first:
            for of_row in (tokens[1], places[1]):
                of_row.insert(0, of_row.pop())
        with torch.inference_mode():
            kv.reserve([len(prompt) + 6 for prompt in prompts])
            prefill(llama.loaded.decoder, kv, range(3), prompts, 0)
            dropped = {1} if last_first else ()
            logits.append(decode_several_tokens(llama.loaded.decoder, kv, numbered(tokens), places, dropped))
    whole, kept = logits  # first those behind 9, 10 and 15, then those behind 11 to 14, then that behind 16
    torch.testing.assert_close(kept, whole[[0, 6, 2, 7]], rtol=1e-4, atol=1e-4)
