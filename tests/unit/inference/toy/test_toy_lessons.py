import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from inference.toy.toy_applications import APPLICATIONS, SPANISH, THEMES
from inference.toy.toy_lessons import EOS_ID, PAD_ID, SPECIAL_TOKENS, VOCABULARY_SIZE, train_tokenizer
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


def test_a_spanish_word_costs_one_to_three_tokens_and_more_than_one_on_average(tokenizer: Tokenizer) -> None:
    lengths = [len(tokenizer.encode(word).ids) for word in SPANISH.values()]
    assert (min(lengths), max(lengths)) == (1, 3)
    assert sum(lengths) / len(lengths) == pytest.approx(1.6, abs=0.05)


def test_instructions_are_short_prompts(tokenizer: Tokenizer) -> None:
    assert max(len(tokenizer.encode(toy.instruction).ids) for toy in APPLICATIONS.values()) <= 8


def test_special_tokens_come_first(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))
    assert (SPECIAL_TOKENS[PAD_ID], SPECIAL_TOKENS[EOS_ID]) == ("<pad>", "<eos>")
    assert tokenizer.get_vocab_size() == VOCABULARY_SIZE


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_with_its_spaces(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
