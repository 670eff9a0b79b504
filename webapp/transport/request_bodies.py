"""Bodies of requests: unpacked within a bound if they are compressed, and read as strict JSON."""

import zlib
from io import BufferedReader, RawIOBase
from typing import Any, NoReturn, cast

from flask import Request, current_app, request
from flask.json.provider import DefaultJSONProvider
from pydantic_core import from_json, to_json
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.wsgi import get_input_stream

from webapp.client_errors import InvalidRequest

GZIP = zlib.MAX_WBITS | 16  # zlib's flag for a gzip header
PIECE = 2**16  # most bytes that are read or decompressed at once; not tuned


class StrictJson(DefaultJSONProvider):
    """Pydantic's JSON parser, which refuses a depth of more than 200; Python's own raises RecursionError."""

    def loads(self, s: str | bytes, **kwargs: Any) -> Any:
        """Parse; raises ValueError, whose message names line and column."""
        return from_json(s, allow_inf_nan=False)

    def dumps(self, obj: Any, **kwargs: Any) -> str:
        """Serialize."""
        return to_json(obj).decode()


class ApiRequest(Request):
    """A request whose unreadable JSON becomes InvalidRequest with the parser's message."""

    def on_json_loading_failed(self, e: ValueError | None) -> NoReturn:
        """Raise InvalidRequest."""
        raise InvalidRequest(f"We could not parse the JSON body of your request: {e}.", code="invalid_json")


class Gunzipped(RawIOBase):
    """Decompresses a gzip stream up to a bound; raises RequestEntityTooLarge, status 413, beyond it. Raises
    InvalidRequest for a malformed or truncated stream.
    """

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
    """Before each request: decompress a compressed body on reading; raises InvalidRequest for another encoding."""
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding in ("identity", ""):
        return
    if encoding not in ("gzip", "x-gzip"):
        raise InvalidRequest("Unsupported Content-Encoding: send gzip, or none.", param="Content-Encoding")
    environ = request.environ
    most = current_app.config["MAX_CONTENT_LENGTH"]
    compressed = get_input_stream(environ, max_content_length=most)
    environ["wsgi.input"] = BufferedReader(cast(RawIOBase, Gunzipped(compressed, most)), PIECE)
    request.max_content_length = most + 1  # Werkzeug's own bound would silently cut the body off there
    environ["wsgi.input_terminated"] = True  # a gzip stream marks its own end; its decompressed length is unknown
    environ.pop("CONTENT_LENGTH", None)
    environ.pop("HTTP_CONTENT_ENCODING", None)


def _unreadable() -> InvalidRequest:
    return InvalidRequest(
        "The body says that it is compressed with gzip, but it is not, or not whole.", code="bad_gzip"
    )
