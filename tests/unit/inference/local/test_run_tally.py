"""The sums of a run, with the arithmetic beside them."""

from inference.local.run_tally import RunTally


def test_padding_is_what_a_prefill_computes_beyond_its_prompts():
    tally = RunTally()
    tally.count_prefill([3, 7, 5], 0.5)  # 3 * 7 - (3 + 7 + 5)
    tally.count_prefill([4], 0.25)
    figures = tally.figures()
    assert (figures.pad_tokens, figures.length, figures.prefill_s) == (6, 7, 0.75)
    assert tally.prefilled_tokens == 3 * 7 + 4


def test_tokens_of_finished_rows_are_invalid():
    tally = RunTally()
    tally.count_prefill([4, 4, 4], 0.1)
    tally.count_decode(rows=3, running=2, seconds=0.1)
    tally.count_decode(rows=3, running=1, seconds=0.1)
    figures = tally.figures()
    assert (figures.iterations, figures.size) == (3, 3)
    assert (figures.valid_tokens, figures.invalid_tokens) == (3 + 2 + 1, 0 + 1 + 2)


def test_the_longest_row_and_the_largest_cache_are_kept():
    tally = RunTally()
    for new_tokens, kv_bytes in ((5, 100), (9, 300), (2, 200)):
        tally.count_finished(new_tokens)
        tally.count_memory(kv_bytes)
    assert (tally.figures().generation_length, tally.figures().peak_kv_bytes) == (9, 300)
