"""Stop strings, bytes of tokens, and text that grows with its tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from inference.answer_text import UNDECODED, GrowingText, bytes_of_token, cut_at_stop, ends_in_stop_string, first_stop
from inference.prompts.prompt_format import load_prompt_format
from settings import BUNDLED_MODEL


class Pieces:
    """A tokenizer with given pieces; the text's leading blank is dropped, as SentencePiece does."""

    def __init__(self, *pieces):
        self.pieces = pieces

    def decode(self, token_ids, *, skip_special_tokens=False):
        return "".join(self.pieces[token] for token in token_ids).removeprefix(" ")


def test_a_stop_string_is_found_across_tokens():
    assert ends_in_stop_string(Pieces("a", "\nQ", ":", "b"), [0, 3, 1, 2], ["\nQ:"])
    assert not ends_in_stop_string(Pieces("a", "\nQ", ":", "b"), [0, 3, 1], ["\nQ:"])


def test_a_stop_string_may_begin_with_a_blank():
    assert ends_in_stop_string(Pieces("the", " end"), [0, 1], [" end"])


def test_an_answer_is_cut_before_its_first_stop_string():
    assert cut_at_stop("one\ntwo###three", ["###", "\n"]) == "one"
    assert cut_at_stop("one", ["###"]) == "one"


def test_the_stop_string_that_begins_first_ended_an_answer_and_of_two_at_one_place_the_shorter():
    assert first_stop("one\ntwo###three", ["###", "\n"]) == "\n"
    assert first_stop("one ENDING", ["ENDING", "END", "###"]) == "END"
    assert first_stop("one", ["###"]) is None


@pytest.mark.parametrize(
    ("piece", "byte_level", "raw"),
    [
        ("Ġtree", True, b" tree"),
        ("Ã", True, b"\xc3"),
        ("<｜end▁of▁sentence｜>", True, "<｜end▁of▁sentence｜>".encode()),
        ("▁tree", False, b" tree"),
        ("<0x0A>", False, b"\n"),
        ("##ing", False, b"##ing"),
    ],
)
def test_a_token_stands_for_these_bytes(piece: str, byte_level: bool, raw: bytes) -> None:
    assert bytes_of_token(piece, byte_level) == raw


@pytest.mark.parametrize("text", ["tree river", "naïve café 🙂", "a\nb\t"])
def test_the_bytes_of_all_tokens_are_those_of_the_text(text: str) -> None:
    prompts = load_prompt_format(str(BUNDLED_MODEL))
    ids = prompts.encode("", text)[1:-1]  # without the template's tokens
    assert b"".join(map(prompts.token_bytes, ids)).decode().strip() == text.strip()
    assert prompts.token_bytes(10**6) == b""


PIECES = ["<s>", "▁", "▁the", "▁end", "a", "b", ".", *(f"<0x{byte:02X}>" for byte in range(256))]


def sentence_pieces():
    """A tokenizer as Llama 2's: a leading blank is dropped, and bytes stand for what it has no piece for."""
    tokenizer = Tokenizer(BPE({piece: number for number, piece in enumerate(PIECES)}, [], byte_fallback=True))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
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


def test_an_answer_of_tokens_that_end_in_no_character_is_decoded_in_time_that_grows_with_its_length():
    decoded = 0

    def decode(ids):
        nonlocal decoded
        decoded += len(ids)
        return UNDECODED * len(ids)

    growing = GrowingText(decode)
    for _ in range(4000):
        growing.add_ids([0])
    assert decoded < 25 * 4000  # all of them after each token: 2000 * 4000
    assert growing.text == ""


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
