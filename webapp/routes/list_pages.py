"""What routes of several files have in common: an object as an answer, and pages of lists."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from flask import Response

from models.client_requests import Page
from protocol.api_objects import ApiObject
from protocol.client_errors import InvalidRequest
from protocol.json_bytes import one_line_json
from webapp.context.app_context import current_context
from webapp.context.auth import current_tenant

Entry = TypeVar("Entry")


def json_answer(body: ApiObject, headers: Mapping[str, str] = {}) -> Response:
    """Returns an object as an answer, written as JSON directly, while APIFlask would make a dict of it first."""
    return Response(one_line_json(body), headers=dict(headers), mimetype="application/json")


def read_page(
    kind: str, id_pattern: re.Pattern[str], read: Callable[..., Page[Entry] | None], after: str | None, **asked: Any
) -> Page[Entry]:
    """Returns the tenant's page behind `after` that `read` finds; raises InvalidRequest if `after` is not an entry."""
    if after is None or id_pattern.fullmatch(after):
        with current_context().sessions() as session:
            page = read(session, current_tenant(), after=after, **asked)
        if page is not None:
            return page
    raise InvalidRequest(f"No {kind} '{(after or '')[:80]}' to list after.", param="after")
