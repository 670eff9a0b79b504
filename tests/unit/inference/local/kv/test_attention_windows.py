"""Windows of attention as masks over columns."""

import torch

from inference.local.kv.attention_windows import Window, in_turns, masks_by_kind

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
