"""The text of an answer in the making: whole characters, no beginnings of stop strings, at last the stored answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from inference.growing_text import GrowingText
from inference.prompt_format import load_prompt_format
from inference.stop_strings import cut_at_stop
from settings import BUNDLED_MODEL

PIECES = ["<s>", "▁", "▁the", "▁end", "a", "b", ".", *(f"<0x{byte:02X}>" for byte in range(256))]


def sentence_pieces():
    """A tokenizer as Llama 2's: a leading blank is dropped, and bytes stand for what it has no piece for."""
    tokenizer = Tokenizer(BPE({piece: number for number, piece in enumerate(PIECES)}, [], byte_fallback=True))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


BUNDLED = load_prompt_format(str(BUNDLED_MODEL))
LLAMA = sentence_pieces()
TOKENIZER = Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))
BYTES = [TOKENIZER.token_to_id(character) for character in ByteLevel.alphabet()]  # a token of each single byte
TEXTS = st.lists(st.sampled_from(["river", " cloud", "é", "€", "🙂", "\n", "###", " ", "�", "ein Haus"]), max_size=30)


def decode_llama(ids):
    return LLAMA.decode(list(ids), skip_special_tokens=True)


def in_parts(ids, data):
    while ids:
        size = data.draw(st.integers(1, 4))
        yield ids[:size]
        ids = ids[size:]


@given(TEXTS, st.data())
def test_it_only_grows_and_lacks_at_the_end_at_most_what_is_half_a_character(words, data):
    ids = BUNDLED.encode("", "".join(words))
    growing, before = GrowingText(BUNDLED.decode), ""
    for part in in_parts(ids, data):
        growing.add_ids(part)
        assert growing.text.startswith(before)
        before = growing.text
    assert BUNDLED.decode(ids).rstrip("�") == before


@given(st.lists(st.sampled_from(BYTES), max_size=40), st.data())
def test_whatever_bytes_a_model_of_bytes_generates_the_text_is_the_beginning_of_the_answer(ids, data):
    growing = GrowingText(BUNDLED.decode)
    for part in in_parts(ids, data):
        growing.add_ids(part)
    assert BUNDLED.decode(ids).startswith(growing.text)


@given(st.lists(st.sampled_from(["▁", "▁the", "a", ".", "<s>", "€", "🙂"]), max_size=30), st.data())
def test_it_is_the_answer_of_a_tokenizer_that_drops_leading_blanks_and_falls_back_to_bytes(pieces, data):
    ids = []
    for piece in pieces:
        number = LLAMA.token_to_id(piece)
        ids += [number] if number is not None else [LLAMA.token_to_id(f"<0x{byte:02X}>") for byte in piece.encode()]
    growing = GrowingText(decode_llama)
    for part in in_parts(ids, data):
        growing.add_ids(part)
    assert growing.text == decode_llama(ids)


@given(st.text("ab#\n", max_size=40), st.lists(st.text("ab#\n", min_size=1, max_size=4), max_size=3), st.data())
def test_no_part_of_a_stop_string_ever_leaves(text, stop, data):
    growing, generated = GrowingText(lambda ids: "".join(map(chr, ids)), stop), ""
    published = [""]
    for part in in_parts([ord(character) for character in text], data):
        growing.add_ids(part)
        generated += "".join(map(chr, part))
        published.append(growing.text)
        if any(string in generated for string in stop):
            break  # the row has ended
    assert all(cut_at_stop(generated, stop).startswith(piece) for piece in published)


def test_what_may_be_the_beginning_of_a_stop_string_leaves_once_it_is_none():
    growing = GrowingText(lambda ids: "".join(map(chr, ids)), ["###"])
    growing.add_ids([ord("a"), ord("#"), ord("#")])
    assert growing.text == "a"
    growing.add_ids([ord("b")])
    assert growing.text == "a##b"


@pytest.mark.parametrize(("texts", "grown"), [(["on", "one", "one tw"], "one tw"), (["one", "o"], "one")])
def test_a_server_without_ids_gives_the_whole_text_each_time(texts, grown):
    growing = GrowingText(BUNDLED.decode)
    for text in texts:
        growing.set_text(text)
    assert growing.text == grown
