"""The base classes of the API's queries, answers and lists, shared by all calls."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self, TypeVar

from flask import Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session, sessionmaker

from webapp.client_errors import InvalidRequest
from webapp.requests.field_types import Text
from webapp.transport.one_line_json import one_line_json

Page = TypeVar("Page")


class Query(BaseModel):
    """The query of a call: unknown parameters are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PageQuery(Query):
    """The query of a list that is read in pages."""

    limit: int = Field(default=20, ge=1, le=100, description="Most entries of a page")
    after: Text | None = Field(default=None, description="The last id of the page before")


class ApiObject(BaseModel):
    """A JSON object, or a part of one, that this service answers with."""

    model_config = ConfigDict(frozen=True)


def json_answer(body: ApiObject, headers: Mapping[str, str]) -> Response:
    """Returns an object as an answer, made into JSON at once: APIFlask makes it into a dict first."""
    return Response(one_line_json(body), headers=dict(headers), mimetype="application/json")


class ListPage(ApiObject):
    """One page of a list, as OpenAI's clients read it; a subclass says what its entries are."""

    object: Literal["list"] = "list"
    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def with_entries(cls, entries: Sequence[Any], *, has_more: bool) -> Self:
        """Returns the page with these entries, objects or dicts that have an id."""
        ids = [entry["id"] if isinstance(entry, dict) else entry.id for entry in entries]
        first_id, last_id = (ids[0], ids[-1]) if ids else (None, None)
        return cls(data=list(entries), first_id=first_id, last_id=last_id, has_more=has_more)


class DeletedObject(ApiObject):
    """The answer to a deletion; a subclass names the kind of object."""

    id: str
    object: str
    deleted: Literal[True] = True


def read_page(
    sessions: sessionmaker[Session],
    kind: str,
    id_pattern: re.Pattern[str],
    after: str | None,
    read: Callable[[Session], Page | None],
) -> Page:
    """Returns the page that `read` finds; raises InvalidRequest if `id` is not an id of the tenant's entries."""
    if after is None or id_pattern.fullmatch(after):
        with sessions() as session:
            page = read(session)
        if page is not None:
            return page
    raise InvalidRequest(f"No {kind} '{(after or '')[:80]}' to list after.", param="after")
