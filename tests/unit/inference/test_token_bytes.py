"""The bytes that single tokens stand for, in the vocabularies that exist."""

import pytest

from inference.prompt_format import load_prompt_format
from inference.token_bytes import bytes_of_token
from settings import BUNDLED_MODEL


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
