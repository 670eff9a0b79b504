"""What workers publish of answers in the making, and which of them web processes ask for: two channels of the broker.

Both are hints. A message that is lost delays a stream until the next one, or until the answer stands in Postgres. They
hold parts of answers, which the broker passes on and does not store.
"""

from collections.abc import Collection, Iterable

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

Piece = tuple[str, int, str]  # request's id, characters of the answer in front, text

_PIECES: TypeAdapter[list[Piece]] = TypeAdapter(list[Piece])
_IDS: TypeAdapter[list[str]] = TypeAdapter(list[str])


def pieces_channel(installation: str) -> str:
    """From the workers: pieces of answers, those of one step together."""
    return f"magnus-{installation}:pieces"


def asks_channel(installation: str) -> str:
    """From the web processes: ids of requests whose answers are wanted from their beginning on."""
    return f"magnus-{installation}:asks"


def encode_pieces(pieces: Iterable[Piece]) -> bytes:
    """One message."""
    return to_json(list(pieces))


def decode_pieces(message: bytes) -> list[Piece]:
    """Raises ValueError for what is no such message."""
    return _PIECES.validate_python(from_json(message, cache_strings=False))


def encode_asks(ids: Collection[str]) -> bytes:
    """One message."""
    return to_json(list(ids))


def decode_asks(message: bytes) -> list[str]:
    """Raises ValueError for what is no such message."""
    return _IDS.validate_json(message)
