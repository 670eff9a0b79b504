"""A model directory that loads in a moment: a random Llama whose tokens are letters and which never says EOS."""

from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

POSITIONS = 4096
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 \n.:"
UNKNOWN_TO_MODEL = "!"  # the tokenizer knows it, the model has no embedding for it: an error that nobody foresaw


def make_small_model(directory: Path, seed: int = 3) -> Path:
    """Write the model; the same one every time for a seed."""
    words = ["<unk>", "<eos>", *LETTERS]
    tokenizer = Tokenizer(WordLevel({word: n for n, word in enumerate([*words, UNKNOWN_TO_MODEL])}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(directory)
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=POSITIONS,
            initializer_range=0.5,
            eos_token_id=1,
            pad_token_id=0,
            bos_token_id=None,
        )
    )
    with torch.no_grad():
        model.model.embed_tokens.weight[1] = 0.0
        model.lm_head.weight[0:2] = 0.0  # neither <unk> nor <eos> is ever the likeliest
    model.save_pretrained(directory)
    return directory
