"""The errors of a server that does not answer a request, split by their consequence for the row.

The first line of an error's docstring is its message; the names in braces are the error's attributes.
"""

from dataclasses import dataclass

from inference.answer_text import storable
from inference.engine_errors import InferenceError

# The most characters of a server's message that are shown; it may quote the prompt, which must not be logged.
SHOWN_CHARACTERS = 200
# A row may have made the server crash if the server was lost this number of times while it served the row. Not tuned.
MOST_LOSSES = 3


class ServerLostOften(Exception):
    """The server was lost several times while it served the same rows; one of them may be the cause."""


@dataclass(eq=False)
class ServerFault(InferenceError):
    """the server is at fault: {reason}"""

    reason: str

    def __post_init__(self) -> None:
        self.reason = storable(self.reason[:SHOWN_CHARACTERS])


@dataclass(eq=False)
class ServerUnusable(InferenceError):
    """the server at {url} cannot be used: {reason}

    It does not answer, or not as an engine of its kind; the operator must repair the server or correct the URL.
    """

    url: str
    reason: str

    def __post_init__(self) -> None:
        self.reason = storable(self.reason[:SHOWN_CHARACTERS])


@dataclass(eq=False)
class ServerBusy(InferenceError):
    """the server takes no more requests now (status {status})

    The row is sent again after `retry_after_s`, or goes back to the queue, which is not a failed attempt.
    """

    status: int
    retry_after_s: float


class ServerFailed(ServerFault):
    """the server failed: {reason}

    The server gets no work until it has answered a trial. If it answers the trial, the row has a failed attempt.
    """


class ServerLost(ServerFault):
    """the connection was lost: {reason}

    The row continues after its last token when the server is available again.
    """


class ServerGarbage(ServerFailed):
    """the server's answer cannot be read: {reason}

    It counts like any other failure of the server.
    """


class RowRefused(ServerFault):
    """the server refuses the request: {reason}

    If the server then answers a trial, it would refuse the request each time, so the request fails with this error.
    """
