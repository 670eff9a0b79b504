"""JSON from outside: UTF-8, of bounded depth, without lone surrogates, NaN or infinities."""

from typing import Any, NoReturn

from flask import Request
from flask.json.provider import DefaultJSONProvider
from pydantic_core import from_json, to_json

from webapp.client_errors import InvalidRequest


class StrictJson(DefaultJSONProvider):
    """Reads with the parser of Pydantic, which stops at a depth of 200 where Python's own raises RecursionError."""

    def loads(self, s: str | bytes, **kwargs: Any) -> Any:
        """Parse; raises ValueError that says where it stopped."""
        return from_json(s, allow_inf_nan=False)

    def dumps(self, obj: Any, **kwargs: Any) -> str:
        """Serialize."""
        return to_json(obj).decode()


class ApiRequest(Request):
    """A request whose unreadable JSON is the client's error, with the parser's own words."""

    def on_json_loading_failed(self, e: ValueError | None) -> NoReturn:
        """Refuse the body."""
        raise InvalidRequest(f"We could not parse the JSON body of your request: {e}.", code="invalid_json")
