"""Reads JSON from clients strictly: UTF-8, of bounded depth, without lone surrogates, NaN or infinities."""

from typing import Any, NoReturn

from flask import Request
from flask.json.provider import DefaultJSONProvider
from pydantic_core import from_json, to_json

from webapp.client_errors import InvalidRequest


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
