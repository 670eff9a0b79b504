"""Two channels of the broker: pieces of running answers from workers, and requests of web processes for them.

Both are hints. A lost message delays a stream until the next one, or until the answer is in Postgres. The broker passes
the parts of answers on without storing them.
"""

from collections.abc import Collection, Iterable

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

Piece = tuple[str, int, str]  # request's id, characters of the answer before it, text

_PIECES: TypeAdapter[list[Piece]] = TypeAdapter(list[Piece])
_IDS: TypeAdapter[list[str]] = TypeAdapter(list[str])


def pieces_channel(installation: str) -> str:
    """The channel from workers to web processes: the pieces of all answers of a step."""
    return f"magnus-{installation}:pieces"


def asks_channel(installation: str) -> str:
    """The channel from web processes to workers: ids of requests whose text is needed from the beginning."""
    return f"magnus-{installation}:asks"


def encode_pieces(pieces: Iterable[Piece]) -> bytes:
    """Encodes one message."""
    return to_json(list(pieces))


def decode_pieces(message: bytes) -> list[Piece]:
    """Decodes a message; raises ValueError if it is malformed."""
    return _PIECES.validate_python(from_json(message, cache_strings=False))


def encode_asks(ids: Collection[str]) -> bytes:
    """Encodes one message."""
    return to_json(list(ids))


def decode_asks(message: bytes) -> list[str]:
    """Decodes a message; raises ValueError if it is malformed."""
    return _IDS.validate_json(message)
