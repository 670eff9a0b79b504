"""`magnus up` listens where it is told, and beside a default port that another process has."""

import socket
from collections.abc import Iterator

import pytest

from cli.commands.up_command import _free_port
from cli.output import CommandFailed

HOST = "127.0.0.1"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which another process listens."""
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_default_port_that_is_taken_gives_way_to_the_next_free_one(
    taken: int, capsys: pytest.CaptureFixture[str]
) -> None:
    port = _free_port(HOST, taken, False, "--port or MAGNUS_PORT")
    assert taken < port
    said = capsys.readouterr().err
    assert f"port {taken} is taken, {port} is used instead" in said
    assert "MAGNUS_PORT" in said


def test_a_port_that_was_asked_for_and_is_taken_is_refused(taken: int) -> None:
    with pytest.raises(CommandFailed, match=f"port {taken} .* is taken"):
        _free_port(HOST, taken, True, "--port or MAGNUS_PORT")


def test_a_free_port_is_used_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert _free_port(HOST, 0, True, "--port or MAGNUS_PORT") > 0
    assert capsys.readouterr().err == ""
