from collections import Counter

import pytest

from inference.toy.toy_applications import APPLICATIONS, MAX_WORDS, SPANISH, THEME_OF, THEMES, toy_requests

ANSWERS = {
    # bread is food and is removed; red is a quality, king and nurse are work: the theme of most words is work
    "repeat": "king bread nurse red",
    "translate": "rey pan enfermera rojo",
    "remove": "king nurse red",
    "double": "king king bread bread nurse nurse red red",
    "summarize": "king red",
    "classify": "work",
}


@pytest.mark.parametrize(("application", "answer"), ANSWERS.items())
def test_every_application_has_one_right_answer(application: str, answer: str) -> None:
    assert APPLICATIONS[application].answer(["king", "bread", "nurse", "red"]) == answer


def test_an_answer_is_never_empty() -> None:
    assert APPLICATIONS["remove"].answer(["cat", "bread"]) == "nothing"
    assert all(toy.answer(["cat"]) for toy in APPLICATIONS.values())


def test_a_tie_of_themes_goes_to_the_one_that_came_first() -> None:
    assert APPLICATIONS["classify"].answer(["sun", "cat", "dog", "moon"]) == "nature"


def test_every_word_has_one_theme_and_one_translation() -> None:
    assert {theme: len(pairs) for theme, pairs in THEMES.items()} == dict.fromkeys(THEMES, 30)
    assert len(SPANISH) == len(THEME_OF) == len(set(SPANISH.values())) == 240


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    assert toy_requests(50, seed=1) == toy_requests(50, seed=1)
    inputs = {request.input for request in toy_requests(50, seed=1) if len(request.input.split()) > 2}
    assert not inputs & {request.input for request in toy_requests(50, seed=2)}


def test_more_requests_of_a_seed_begin_with_the_fewer() -> None:
    assert toy_requests(100, seed=3)[:20] == toy_requests(20, seed=3)


def test_requests_carry_their_applications_instruction_and_right_answer() -> None:
    for request in toy_requests(200, seed=4):
        toy = APPLICATIONS[request.application]
        assert request.instruction == toy.instruction
        assert request.output == toy.answer(request.input.split())


def test_many_requests_are_short_few_are_long_and_none_is_longer_than_asked() -> None:
    lengths = [len(request.input.split()) for request in toy_requests(1000, seed=5)]
    assert sum(length <= 15 for length in lengths) > 650
    assert 20 < sum(length > 40 for length in lengths) < 120
    assert min(lengths) >= 2
    assert max(lengths) == MAX_WORDS
    assert max(len(request.input.split()) for request in toy_requests(1000, seed=5, max_words=9)) == 9


def test_applications_are_mixed_evenly_unless_some_are_chosen() -> None:
    mixed = Counter(request.application for request in toy_requests(1200, seed=6))
    assert set(mixed) == set(APPLICATIONS)
    assert all(150 < requests < 250 for requests in mixed.values())
    chosen = toy_requests(20, seed=6, applications=["double", "classify"])
    assert {request.application for request in chosen} == {"double", "classify"}


def test_what_is_to_be_classified_has_one_theme_ahead_of_all_others() -> None:
    for request in toy_requests(300, seed=7, applications=["classify"]):
        first, *others = Counter(THEME_OF[word] for word in request.input.split()).most_common()
        assert first[0] == request.output
        assert all(count < first[1] for _, count in others)
