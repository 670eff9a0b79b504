"""An error's message is the first line of its docstring, with its facts filled in."""

import pytest

from inference.engine_errors import (
    InferenceError,
    OutOfMemory,
    QuantizationUnavailable,
    SequenceTooLong,
    UnreadableBudget,
    UnreadableModel,
    UnsupportedModel,
)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InferenceError(), "an engine failed"),
        (OutOfMemory(30, 20), "out of memory: the KV cache needs 30 bytes, the budget is 20"),
        (SequenceTooLong("a", 130, 128), "sequence a: 130 tokens, the model has 128 positions"),
        (UnsupportedModel("bert", "it has no decoder"), "bert cannot be served: it has no decoder"),
        (QuantizationUnavailable("4bit", "no GPU"), "cannot load the model in 4bit: no GPU"),
        (UnreadableBudget("20 gigs"), "20 gigs is no size of a KV cache; write for example 20GiB"),
        (UnreadableModel("{m}", "no file"), "cannot read {m}: no file"),
    ],
)
def test_a_message_names_the_facts(error, message):
    assert str(error) == message
