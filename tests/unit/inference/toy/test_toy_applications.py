from collections import Counter

import pytest

from inference.toy.toy_applications import APPLICATIONS, MAX_WORDS, THEME_OF, toy_requests

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


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    assert toy_requests(50, seed=1) == toy_requests(50, seed=1)
    inputs = {request.input for request in toy_requests(50, seed=1) if len(request.input.split()) > 2}
    assert not inputs & {request.input for request in toy_requests(50, seed=2)}


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
