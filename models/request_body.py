"""What `StoredRequest.body` holds, read from rows that another release or another program may have written."""

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError


class UnreadableBody(ValueError):
    """The stored body has another form than this release writes; `where` is the first field that differs."""

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(f"The stored request cannot be read: its body is malformed{where and f' at {where}'}.")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class StoredSampling(_Part):
    """How the client wants tokens sampled; null where it did not say."""

    temperature: FiniteFloat | None = None
    top_p: FiniteFloat | None = None
    top_k: int | None = None
    seed: int | None = None


class StoredTurn(_Part):
    """One message of a conversation."""

    role: str
    content: str


class StoredFormat(_Part):
    """What form the answer has; `json_schema` has a schema, `json_object` none."""

    type: Literal["json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None

    @property
    def schema_text(self) -> str | None:
        """The schema as JSON; None if any object will do."""
        return None if self.schema_ is None else json.dumps(self.schema_)


class RequestBody(_Part):
    """A request's body; what is not stored has the value that asks for nothing."""

    metadata: dict[str, str] = {}
    background: bool = True
    stream: bool = False  # somebody reads the answer while it is generated
    sampling: StoredSampling = StoredSampling()
    stop: tuple[str, ...] = ()
    messages: tuple[StoredTurn, ...] = ()
    format: StoredFormat | None = None
    top_logprobs: int | None = None


def read_body(stored: object) -> RequestBody:
    """The body of a stored row; raises UnreadableBody."""
    try:
        return RequestBody.model_validate(stored)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise UnreadableBody(where) from error
