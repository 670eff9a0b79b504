"""The bodies that a service must refuse are made piece by piece, as long as they say."""

import gzip

import pytest

from benchmarks.api.refused_bodies import PIECE, Refused, refused_bodies


@pytest.mark.parametrize("body", refused_bodies(50), ids=lambda body: body.name.replace(" ", "-"))
def test_a_body_has_the_length_that_it_says_and_comes_in_small_pieces(body: Refused) -> None:
    pieces = list(body.pieces())
    assert sum(map(len, pieces)) == body.size
    assert max(map(len, pieces)) <= max(PIECE, *(len(part) for part, _ in body.parts))


def test_a_bomb_unfolds_to_a_thousand_times_its_size() -> None:
    (bomb,) = (body for body in refused_bodies(50) if "bomb" in body.name)
    folded = b"".join(bomb.pieces())
    assert len(gzip.decompress(folded)) > 500 * len(folded)
