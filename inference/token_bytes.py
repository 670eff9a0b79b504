"""The bytes that one token of a vocabulary stands for; a character may be spread over several tokens."""

import re

BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # how vocabularies of SentencePiece write a byte that is no character


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable characters for all bytes: those that are printable, then the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTE_OF = _byte_level_alphabet()


def bytes_of_token(piece: str, byte_level: bool) -> bytes:
    """The bytes of a token as its vocabulary writes it; `byte_level`: a character for each byte, as GPT-2 does."""
    if byte_level:
        # an added token is written as it is, and may have other characters
        return bytes(BYTE_OF[one] for one in piece) if all(one in BYTE_OF for one in piece) else piece.encode()
    found = BYTE.fullmatch(piece)
    return bytes([int(found[1], 16)]) if found else piece.replace("\u2581", " ").encode()
