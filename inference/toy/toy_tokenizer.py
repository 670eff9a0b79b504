"""The bundled model's tokenizer: byte-level BPE for any UTF-8 text, with one token for each English toy word.

A space is put before every text and removed when decoding, so that a word is the same token at the start of a text.
"""

from collections.abc import Iterator

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from inference.toy.toy_applications import APPLICATIONS
from inference.toy.toy_words import SPANISH, THEMES

PAD, EOS, SYSTEM, USER, ASSISTANT = "<pad>", "<eos>", "<system>", "<user>", "<assistant>"
SPECIAL_TOKENS = (PAD, EOS, SYSTEM, USER, ASSISTANT)
PAD_ID, EOS_ID = SPECIAL_TOKENS.index(PAD), SPECIAL_TOKENS.index(EOS)  # special tokens come first
# Bytes, special tokens, all English toy words, and merges for Spanish ones. With more tokens Spanish would be shorter
# and the model larger. Not tuned.
VOCABULARY_SIZE = 1280
CHAT_TEMPLATE = (
    "{%- for message in messages %}{{ '<' + message['role'] + '>' + message['content'] }}"
    "{%- if message['role'] == 'assistant' %}{{ '<eos>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<assistant>' }}{%- endif %}"
)


def train_tokenizer() -> Tokenizer:
    """Train the BPE on the toy words; Spanish is rarer in its corpus, so a Spanish word takes more tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


def _corpus() -> Iterator[str]:
    english = " ".join([*SPANISH, *THEMES, "nothing", *(toy.instruction for toy in APPLICATIONS.values())])
    yield from [english] * 10
    yield " ".join(SPANISH.values())
