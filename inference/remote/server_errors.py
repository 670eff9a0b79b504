"""What a server may do instead of answering, split by what follows for the row that asked.

The first line of an error's docstring is its message; the names in braces are the error's attributes.
"""

from inference.engine_errors import InferenceError

# Longest part of a server's own words that is passed on: they may quote the prompt, which no log may hold.
SHOWN_CHARACTERS = 200


class ServerUnusable(InferenceError):
    """the server at {url} cannot be used: {reason}

    It does not answer, or not as an engine of its kind does; the operator must look at the server or correct the URL.
    """

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = url, reason[:SHOWN_CHARACTERS]
        super().__init__()


class ServerBusy(InferenceError):
    """the server takes no more requests now (status {status})

    The row tries again after `retry_after_s`, or goes back to the queue; that is no failed attempt.
    """

    def __init__(self, status: int, retry_after_s: float) -> None:
        self.status, self.retry_after_s = status, retry_after_s
        super().__init__()


class ServerFailed(InferenceError):
    """the server failed: {reason}

    The row is tried again; if the server fails on it each time, the request has failed.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason[:SHOWN_CHARACTERS]
        super().__init__()


class ServerLost(InferenceError):
    """the connection was lost: {reason}

    The row goes on from what it has as soon as the server is there again.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__()


class ServerGarbage(InferenceError):
    """the server's answer is none: {reason}

    The server gets no more work until it answers a trial; its rows go back to the queue.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason[:SHOWN_CHARACTERS]
        super().__init__()


class RowRefused(InferenceError):
    """the server refuses the request: {reason}

    It never answers this request, so it fails with this error; its client must change it.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason[:SHOWN_CHARACTERS]
        super().__init__()
