"""What a model's generation_config.json asks for, in the words of published models."""

import pytest

from inference.model_directory.generation_defaults import generation_defaults

LLAMA = {
    "do_sample": True,
    "temperature": 0.6,
    "top_p": 0.9,
    "eos_token_id": [128001, 128008],
    "transformers_version": "4",
}
QWEN = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}


@pytest.mark.parametrize(
    ("config", "sampling", "not_honoured"),
    [
        ({}, {}, ()),
        ({"eos_token_id": 2, "bos_token_id": 1, "_from_model_config": True}, {}, ()),
        (LLAMA, {"temperature": 0.6, "top_p": 0.9}, ()),
        (QWEN, {name: value for name, value in QWEN.items() if name != "do_sample"}, ()),
        (QWEN | {"do_sample": False}, {"repetition_penalty": 1.05}, ()),
        ({"temperature": 0.6}, {"temperature": 0.6}, ()),
        ({"do_sample": True}, {"temperature": 1.0}, ()),
        ({"top_k": None, "temperature": None}, {}, ()),
        ({"temperature": 3, "top_p": 0, "top_k": -1}, {}, ("temperature", "top_k", "top_p")),
        ({"temperature": "hot", "do_sample": False, "repetition_penalty": True}, {}, ("repetition_penalty",)),
        (
            {
                "no_repeat_ngram_size": 3,
                "bad_words_ids": [[5]],
                "num_beams": 1,
                "suppress_tokens": [7],
                "min_length": 0,
            },
            {},
            ("bad_words_ids", "no_repeat_ngram_size"),
        ),
    ],
)
def test_the_entries_are_sampling_or_named_as_not_honoured(config, sampling, not_honoured):
    found = generation_defaults(config)
    assert (found.sampling, found.not_honoured) == (sampling, not_honoured)
