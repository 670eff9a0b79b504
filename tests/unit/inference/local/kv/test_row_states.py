"""What a cache of states gives to the layers of convolution and linear attention."""

import torch
from transformers.cache_utils import LinearAttentionLayer

from inference.local.kv.row_states import RowStates

LAYER = 3


def inputs(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, 2, length, generator=torch.Generator().manual_seed(seed))


def kept(states: torch.Tensor | None) -> torch.Tensor:
    assert states is not None
    return states


def test_a_convolution_reads_what_transformers_own_layer_gives_it():
    for length in (1, 3, 7):
        states, theirs = RowStates(), LinearAttentionLayer()
        states.begin_states([0])
        assert states.get_conv_state(LAYER) is None
        for seed, (new, begun) in enumerate([(length, False), (1, True), (2, True)]):
            given = inputs(1, new, seed)
            ours = states.update_conv_state(given, LAYER, conv_kernel_size=4)
            assert torch.equal(ours, theirs.update_conv_state(given, conv_kernel_size=4)), (length, begun)
            states.continue_states(1)
            assert torch.equal(kept(states.get_conv_state(LAYER)), theirs.conv_states[0])


def test_each_row_keeps_its_own_state():
    states = RowStates()
    for row in (0, 2, 1):
        states.begin_states([row])
        states.update_recurrent_state(torch.full((1, 2), float(row)), LAYER)
    states.continue_states(3)
    read = kept(states.get_recurrent_state(LAYER))
    assert read[:, 0].tolist() == [0, 1, 2]
    read += 10  # as models write in place
    states.move_state(2, 0)
    assert kept(states.get_recurrent_state(LAYER))[:, 0].tolist() == [12, 11, 12]
    assert states.get_recurrent_state(LAYER, state_idx=1) is None


def test_a_prefill_begins_without_a_state_and_dropped_ones_are_gone():
    states = RowStates()
    states.begin_states([0])
    states.update_recurrent_state(torch.ones(1, 2), LAYER)
    assert not states.has_previous_state(LAYER)
    states.continue_states(1)
    assert states.has_previous_state(LAYER)
    states.begin_states([0])
    assert states.get_recurrent_state(LAYER) is None
    states.drop_states()
    states.continue_states(1)
    assert states.get_recurrent_state(LAYER) is None
