"""Windows of attention as masks over columns."""

import torch
from transformers import Gemma3TextConfig, Llama4TextConfig, MistralConfig, Qwen3Config

from inference.local.forward.attention_windows import Window, described, in_turns, layer_kinds, masks_by_kind

POSITIONS = torch.tensor([[5], [2]])
CAUSAL = torch.zeros(2, 1, 1, 8).masked_fill((torch.arange(8) > POSITIONS)[:, None, None], -1)


def visible(mask):
    return [[n for n, value in enumerate(row) if value == 0] for row in mask[:, 0, 0].tolist()]


def every_token(window):
    """As many columns as there are tokens."""
    return in_turns(8, 8, POSITIONS)


def newest(window):
    """As many columns as the window has tokens."""
    return in_turns(8, window.tokens, POSITIONS)


def test_a_row_attends_to_its_window_or_to_its_chunk():
    assert visible(masks_by_kind({"w": Window(3)}, CAUSAL, POSITIONS, every_token)) == [[3, 4, 5], [0, 1, 2]]
    assert visible(masks_by_kind({"c": Window(4, True)}, CAUSAL, POSITIONS, every_token)) == [[4, 5], [0, 1, 2]]


def test_the_columns_of_a_window_are_written_in_turns():
    assert visible(masks_by_kind({"w": Window(3)}, CAUSAL, POSITIONS, newest)) == [[0, 1, 2], [0, 1, 2]]
    assert visible(masks_by_kind({"w": Window(4)}, CAUSAL, POSITIONS, newest)) == [[0, 1, 2, 3], [0, 1, 2]]
    assert visible(masks_by_kind({"c": Window(4, True)}, CAUSAL, POSITIONS, newest)) == [[0, 1], [0, 1, 2]]
    positions = torch.arange(60)[:, None]
    columns, held = in_turns(5, 7, positions[:5])  # of five columns no token has been written over another one
    assert columns == slice(5)
    assert [[at for at in row if at >= 0] for row in held[:, 0].tolist()] == [[*range(n + 1)] for n in range(5)]
    _, held = in_turns(20, 7, positions)
    assert all({*row} == {*range(n - 6, n + 1)} for n, row in enumerate(held[:, 0].tolist()))
    assert all(at % 7 == column for row in held[:, 0].tolist() for column, at in enumerate(row))


def test_mixed_layers_have_a_mask_for_each_kind_and_no_window_costs_nothing():
    masks = masks_by_kind({"full": None, "w": Window(3)}, CAUSAL, POSITIONS, newest)
    assert isinstance(masks, dict)
    assert masks["full"] is CAUSAL
    assert visible(masks["w"]) == [[0, 1, 2], [0, 1, 2]]
    assert masks_by_kind({}, CAUSAL, POSITIONS, newest) is CAUSAL


def test_a_prefill_attends_within_the_window():
    assert Window(2).prefill_mask(4, torch.device("cpu")).long().tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 1, 1, 0],
        [0, 0, 1, 1],
    ]


def test_windows_are_those_of_the_configuration_unless_they_hold_all_positions():
    assert layer_kinds(MistralConfig(num_hidden_layers=2, sliding_window=64), 128) == (
        ["sliding_attention"] * 2,
        {"sliding_attention": Window(64)},
    )
    assert layer_kinds(MistralConfig(num_hidden_layers=2, sliding_window=128), 128)[1] == {}
    assert layer_kinds(Qwen3Config(num_hidden_layers=2, use_sliding_window=False), 128)[1] == {}
    kinds, windows = layer_kinds(Llama4TextConfig(num_hidden_layers=4, attention_chunk_size=32), 128)
    assert windows == {"chunked_attention": Window(32, in_chunks=True), "full_attention": None}
    assert described(kinds, windows) == "3 layers attend in chunks of 32, 1 to all tokens"
    kinds, windows = layer_kinds(Gemma3TextConfig(num_hidden_layers=6, sliding_window=512), 32768)
    assert described(kinds, windows) == "5 layers attend to windows of 512, 1 to all tokens"
    assert described(["full_attention"], {}) == "1 layer attends to all tokens"


def test_layers_that_attend_to_no_cache_of_their_own_are_told_apart_and_have_no_mask():
    kinds = ["linear_attention", "full_attention", "conv", "dummy"]
    assert (
        described(kinds, {})
        == "1 layer attends to all tokens, 2 with a state for each row, 1 without a cache of its own"
    )
    assert described(["linear_attention"], {}) == "1 layer with a state for each row"
    assert described(["hybrid"] * 2, {}) == "2 layers attend to all tokens, 2 with a state for each row"
    masks = masks_by_kind({"conv": None, "w": Window(3)}, CAUSAL, POSITIONS, newest)
    assert isinstance(masks, dict)
    assert masks["conv"] is None
