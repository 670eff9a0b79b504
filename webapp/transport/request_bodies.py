"""Reads bodies of requests: decompresses them within a bound, and parses them as strict JSON."""

import zlib
from io import BufferedReader, RawIOBase
from typing import Any, NoReturn, cast

from flask import Request, current_app, request
from flask.json.provider import DefaultJSONProvider
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.wsgi import get_input_stream

from protocol.client_errors import InvalidRequest
from protocol.json_bytes import bounded_json, one_line_json

GZIP = zlib.MAX_WBITS | 16  # zlib's notation for data with a gzip header
PIECE = 2**16  # bytes that are read at once, and the most that are decompressed at once; not tuned


class StrictJson(DefaultJSONProvider):
    """Parses bodies with `bounded_json`."""

    def loads(self, s: str | bytes, **kwargs: Any) -> Any:
        """Parses JSON; raises ValueError."""
        return bounded_json(s.encode() if isinstance(s, str) else s)

    def dumps(self, obj: Any, **kwargs: Any) -> str:
        """Serializes as JSON."""
        return one_line_json(obj).decode()


class ApiRequest(Request):
    """A request whose unreadable JSON becomes InvalidRequest with the parser's message."""

    def on_json_loading_failed(self, e: ValueError | None) -> NoReturn:
        """Raises InvalidRequest."""
        raise InvalidRequest(f"We could not parse the JSON body of your request: {e}.", code="invalid_json")


class Gunzipped(RawIOBase):
    """Decompresses a gzip stream; raises RequestEntityTooLarge above `most_bytes`, else InvalidRequest."""

    def __init__(self, compressed: Any, most_bytes: int) -> None:
        self._compressed, self._left_bytes = compressed, most_bytes
        self._unfolding = zlib.decompressobj(GZIP)

    def readable(self) -> bool:
        """Returns True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Decompresses as many bytes as fit into the buffer."""
        while not self._unfolding.eof:
            folded = self._unfolding.unconsumed_tail or self._compressed.read(PIECE)
            try:
                unfolded = self._unfolding.decompress(folded, len(buffer))
            except zlib.error as error:
                raise _unreadable() from error
            self._left_bytes -= len(unfolded)
            if self._left_bytes < 0:
                raise RequestEntityTooLarge
            if unfolded:
                buffer[: len(unfolded)] = unfolded
                return len(unfolded)
            if not folded:
                raise _unreadable()
        return 0


def unfold_body() -> None:
    """Lets a request's compressed body be read decompressed; raises InvalidRequest for an encoding other than gzip."""
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding in ("identity", ""):
        return
    if encoding not in ("gzip", "x-gzip"):
        raise InvalidRequest("Unsupported Content-Encoding: send gzip, or none.", param="Content-Encoding")
    environ = request.environ
    most = current_app.config["MAX_CONTENT_LENGTH"]
    compressed = get_input_stream(environ, max_content_length=most)
    environ["wsgi.input"] = BufferedReader(cast(RawIOBase, Gunzipped(compressed, most)), PIECE)
    request.max_content_length = most + 1  # Werkzeug's own bound would cut the body off without an error
    environ["wsgi.input_terminated"] = True  # a gzip stream marks its end; its decompressed length is not known before
    environ.pop("CONTENT_LENGTH", None)
    environ.pop("HTTP_CONTENT_ENCODING", None)


def _unreadable() -> InvalidRequest:
    return InvalidRequest(
        "The body says that it is compressed with gzip, but it is not, or not whole.", code="bad_gzip"
    )
