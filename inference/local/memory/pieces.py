"""Neighbouring rows of a rectangle that attention reads in one call, so that it reads few hidden columns."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring rows, read up to the width of the longest of them."""

    start: int
    stop: int
    width: int


def split_into_pieces(lengths: Sequence[int], most_hidden: float) -> list[Piece]:
    """Divide the rows so that a piece has at most `most_hidden` tokens of hidden columns, or is one row."""
    pieces, hidden = [Piece(0, 1, lengths[0])], 0
    for row, length in enumerate(lengths[1:], 1):
        last = pieces[-1]
        width = max(last.width, length)
        hidden += (row - last.start) * (width - last.width) + width - length
        if hidden <= most_hidden:
            pieces[-1] = Piece(last.start, row + 1, width)
        else:
            pieces.append(Piece(row, row + 1, length))
            hidden = 0
    return pieces
