"""The broker's two channels for streams: workers publish pieces of answers, web processes ask for missing pieces.

A lost message only delays a stream until the next message, or until the answer is in Postgres. Messages hold parts of
answers, which the broker passes on and does not store. An ask is signed with the installation's secret, so that nobody
who merely reaches the broker can make workers publish answers.
"""

import hmac
from collections.abc import Collection, Iterable

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

Piece = tuple[str, int, str]  # request's id, characters of the answer before this piece, text

_PIECES: TypeAdapter[list[Piece]] = TypeAdapter(list[Piece])
_IDS: TypeAdapter[list[str]] = TypeAdapter(list[str])
SIGNATURE_BYTES = 32  # the length of an HMAC-SHA256


def pieces_channel(installation: str) -> str:
    """Returns the channel on which workers publish pieces of answers, those of one step together."""
    return f"magnus-{installation}:pieces"


def asks_channel(installation: str) -> str:
    """Returns the channel on which web processes ask for answers from their beginning, by requests' ids."""
    return f"magnus-{installation}:asks"


def encode_pieces(pieces: Iterable[Piece]) -> bytes:
    """Encodes pieces as one message."""
    return to_json(list(pieces))


def decode_pieces(message: bytes) -> list[Piece]:
    """Decodes one message; raises ValueError for any other bytes."""
    return _PIECES.validate_python(from_json(message, cache_strings=False))


def encode_asks(ids: Collection[str], secret: str) -> bytes:
    """Encodes request ids as one message, and signs it."""
    asked = to_json(list(ids))
    return _signature(asked, secret) + asked


def decode_asks(message: bytes, secret: str) -> list[str]:
    """Decodes one message; raises ValueError for one without a valid signature, and for any other bytes."""
    signature, asked = message[:SIGNATURE_BYTES], message[SIGNATURE_BYTES:]
    if not hmac.compare_digest(signature, _signature(asked, secret)):
        raise ValueError("signed with another secret, or not at all")
    return _IDS.validate_json(asked)


def _signature(asked: bytes, secret: str) -> bytes:
    return hmac.digest(secret.encode(), asked, "sha256")
