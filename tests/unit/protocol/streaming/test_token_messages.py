"""Workers answer only asks that this installation's web processes signed."""

import pytest
from pydantic_core import to_json

from protocol.streaming.token_messages import decode_asks, encode_asks

IDS = ["resp_a", "resp_b"]


def test_an_ask_is_read_by_whoever_has_the_secret() -> None:
    assert decode_asks(encode_asks(IDS, "secret"), "secret") == IDS


@pytest.mark.parametrize(
    "message",
    [
        to_json(IDS),
        encode_asks(IDS, "another"),
        encode_asks(IDS, "secret")[:-1],
        encode_asks(IDS, "secret")[:32] + to_json(["resp_c"]),
        bytes(32) + to_json(IDS),
        b"",
    ],
)
def test_what_is_not_signed_with_it_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError, match="signed"):
        decode_asks(message, "secret")
