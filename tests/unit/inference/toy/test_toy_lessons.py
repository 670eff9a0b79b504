import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from inference.toy.toy_applications import SPANISH, THEMES
from inference.toy.toy_lessons import train_tokenizer
from settings import BUNDLED_MODEL


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer()


def test_the_bundled_tokenizer_is_the_one_that_training_makes(tokenizer: Tokenizer) -> None:
    bundled = Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))
    assert bundled.get_vocab() == tokenizer.get_vocab()
    assert bundled.to_str() == tokenizer.to_str()


def test_an_english_toy_word_is_one_token_wherever_it_stands(tokenizer: Tokenizer) -> None:
    for word in [*SPANISH, *THEMES, "nothing"]:
        (alone,) = tokenizer.encode(word).ids
        assert tokenizer.encode(f"{word} {word}").ids == [alone, alone]


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_with_its_spaces(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
