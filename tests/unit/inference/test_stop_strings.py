"""Stop strings, also across tokens and over tokenizers that drop a leading blank."""

from inference.stop_strings import cut_at_stop, ends_in_stop_string


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
