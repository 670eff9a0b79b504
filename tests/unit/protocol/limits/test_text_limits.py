"""Which models compute vectors and scores, how many texts a call has, and how long they are."""

from pathlib import Path

import pytest

from inference.embedding.text_model import TextModel, read_text_model
from inference.engine_errors import TooExpensive
from protocol.client_errors import InvalidRequest, NotFound
from protocol.limits import text_limits
from protocol.limits.text_limits import CallTexts, TextLimits, check_values, checked_texts, text_limits_of
from settings import Settings
from tests.unit.inference.embedding.text_directories import write_pair_model, write_text_model


@pytest.fixture(scope="module")
def limits(tmp_path_factory: pytest.TempPathFactory) -> TextLimits:
    """Models that read eight tokens, two of which are special, three of a pair."""
    directory = tmp_path_factory.mktemp("models")
    write_text_model(directory / "small")
    write_pair_model(directory / "pairs")
    return text_limits_of(Settings(embed=f"{directory / 'small'}, {directory / 'pairs'}"))


@pytest.fixture
def small(limits: TextLimits) -> TextModel:
    return limits.find("small", scores=False)


def checked(model: TextModel, *texts: str, truncate: bool = False, queries: int = 0) -> tuple[list[str], list[int]]:
    names = [f"input[{number}]" for number in range(len(texts))]
    return checked_texts(model, CallTexts(texts, names, queries), truncate=truncate, tenant="acme")


def test_a_model_has_the_name_of_its_directory_and_is_found_for_what_it_computes(limits: TextLimits) -> None:
    assert sorted(limits.models) == ["pairs", "small"]
    assert limits.find("small", scores=True).name == "small"
    assert limits.find("pairs", scores=True).scores_pairs
    with pytest.raises(InvalidRequest, match="scores pairs of texts: use /v1/rerank or /v1/score") as caught:
        limits.find("pairs", scores=False)
    assert caught.value.param == "model"
    with pytest.raises(NotFound, match="'words' computes no embeddings, or does not exist; models that do: small"):
        limits.find("words", scores=False)
    with pytest.raises(NotFound, match="models that do: small, pairs"):
        limits.find("words", scores=True)
    with pytest.raises(NotFound, match="no model here does"):
        TextLimits().find("small", scores=False)


def test_a_text_of_the_models_length_is_taken_and_a_longer_one_refused_by_its_place(small: TextModel) -> None:
    assert checked(small, "a b c d e f", "a") == (["a b c d e f", "a"], [8, 3])
    with pytest.raises(InvalidRequest, match=r"at most 8 tokens of a text, but 'input\[1\]' has 9 tokens") as caught:
        checked(small, "a", "a b c d e f g")
    assert (caught.value.param, caught.value.code) == ("input[1]", "context_length_exceeded")
    assert "truncate: true" in str(caught.value)
    assert checked(small, "a", "a b c d e f g", truncate=True) == (["a", "a b c d e f g"], [3, 8])


def test_a_text_longer_than_any_of_so_many_tokens_is_refused_uncounted_or_cut_off(small: TextModel) -> None:
    long = "a " * 1_000_000
    with pytest.raises(InvalidRequest, match=r"'input\[0\]' has 2,000,000 characters"):
        checked(small, long)
    (text,), tokens = checked(small, long, truncate=True)
    assert (len(text), tokens) == (8 * 256, [8])


def test_a_document_is_too_long_with_its_query(limits: TextLimits) -> None:
    pairs = limits.find("pairs", scores=True)
    assert checked(pairs, "a b", "c d e", "f", queries=1)[1] == [8, 6]
    with pytest.raises(InvalidRequest, match=r"a query with its document, but 'input\[2\]' has 9 tokens"):
        checked(pairs, "a b", "c d e", "f g h i", queries=1)
    assert checked(pairs, "a b", "c d e", "f g h i", truncate=True, queries=1)[1] == [8, 8]


def test_the_tokens_of_all_texts_together_are_bounded(small: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_limits, "MOST_CALL_TOKENS", 10)
    assert checked(small, "a b c", "a b c")[1] == [5, 5]
    with pytest.raises(InvalidRequest, match="at most 10 tokens in all its texts, but yours has 11") as caught:
        checked(small, "a b c", "a b c d")
    assert caught.value.param == "input"


def test_texts_that_are_expensive_to_encode_are_refused_and_harm_nobody(small: TextModel) -> None:
    class Expensive:
        def call(self, text: str, cpu_s: float, caller: str = "") -> str:
            raise TooExpensive(cpu_s)

    model = TextModel(**{**vars(small), "max_tokens": 10_000, "long_texts": Expensive()})
    with pytest.raises(InvalidRequest, match="expensive to encode: it takes more than"):
        checked(model, "a" * 30_000)


def test_the_values_of_an_answer_are_bounded_and_more_fit_as_base64(small: TextModel) -> None:
    wide = TextModel(**{**vars(small), "dimensions": 1024})
    check_values(wide, 1024, as_numbers=True)
    check_values(wide, 4096, as_numbers=False)
    with pytest.raises(
        InvalidRequest, match="1,049,600 values, but an answer has at most 1,048,576 as numbers"
    ) as caught:
        check_values(wide, 1025, as_numbers=True)
    assert str(caught.value).endswith("Please send fewer texts, or ask for encoding_format base64.")
    with pytest.raises(InvalidRequest, match="at most 4,194,304"):
        check_values(wide, 4097, as_numbers=False)


def test_a_name_that_was_fetched_leads_to_its_directory(tmp_path: Path) -> None:
    write_text_model(tmp_path / "models" / "minilm")
    found = Settings(state_dir=tmp_path, embed="all-MiniLM-L6-v2,minilm").text_models
    assert found == dict.fromkeys(("all-MiniLM-L6-v2", "minilm"), str(tmp_path / "models" / "minilm"))
    assert Settings(state_dir=tmp_path, embed="BAAI/bge-m3").text_models == {"bge-m3": "BAAI/bge-m3"}
    assert read_text_model("x", found["minilm"]).max_tokens == 8
