"""The base classes of the API's queries, answers and lists, shared by all calls."""

from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from protocol.field_types import Text


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
