"""Errors of a server, split by what happens to the row that asked.

The first line of an error's docstring is its message; the names in braces are the error's attributes.
"""

from dataclasses import dataclass

from inference.engine_errors import InferenceError

# Characters of a server's message that are passed on: it may quote the prompt, which must not be logged.
SHOWN_CHARACTERS = 200


@dataclass(eq=False)
class ServerFault(InferenceError):
    """the server is at fault: {reason}"""

    reason: str

    def __post_init__(self) -> None:
        self.reason = self.reason[:SHOWN_CHARACTERS]


@dataclass(eq=False)
class ServerUnusable(InferenceError):
    """the server at {url} cannot be used: {reason}

    It does not answer, or not like an engine of its kind; the operator must check the server or correct the URL.
    """

    url: str
    reason: str

    def __post_init__(self) -> None:
        self.reason = self.reason[:SHOWN_CHARACTERS]


@dataclass(eq=False)
class ServerBusy(InferenceError):
    """the server takes no more requests now (status {status})

    The row tries again after `retry_after_s`, or goes back to the queue; that is no failed attempt.
    """

    status: int
    retry_after_s: float


class ServerFailed(ServerFault):
    """the server failed: {reason}

    The row is tried again; if the server fails on it each time, the request has failed.
    """


class ServerLost(ServerFault):
    """the connection was lost: {reason}

    The row continues from its tokens once the server is back.
    """


class ServerGarbage(ServerFault):
    """the server's answer cannot be read: {reason}

    The server gets no more work until it answers a trial; its rows go back to the queue.
    """


class RowRefused(ServerFault):
    """the server refuses the request: {reason}

    It never answers this request, so it fails with this error; its client must change it.
    """
