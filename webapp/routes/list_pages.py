"""What routes of several files have in common: an object as an answer, and pages of lists."""

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from flask import Response
from sqlalchemy.orm import Session, sessionmaker

from protocol.api_objects import ApiObject
from protocol.client_errors import InvalidRequest
from protocol.json_bytes import one_line_json

Page = TypeVar("Page")


def json_answer(body: ApiObject, headers: Mapping[str, str] = {}) -> Response:
    """Returns an object as an answer, written as JSON directly, while APIFlask would make a dict of it first."""
    return Response(one_line_json(body), headers=dict(headers), mimetype="application/json")


def read_page(
    sessions: sessionmaker[Session],
    kind: str,
    id_pattern: re.Pattern[str],
    after: str | None,
    read: Callable[[Session], Page | None],
) -> Page:
    """Returns the page that `read` finds; raises InvalidRequest if `after` is not the id of an entry of the tenant."""
    if after is None or id_pattern.fullmatch(after):
        with sessions() as session:
            page = read(session)
        if page is not None:
            return page
    raise InvalidRequest(f"No {kind} '{(after or '')[:80]}' to list after.", param="after")
