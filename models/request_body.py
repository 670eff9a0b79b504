"""What `StoredRequest.body` holds, read from rows that another release or another program may have written."""

from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError


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


class RequestBody(_Part):
    """A request's body; what is not stored has the value that asks for nothing."""

    metadata: dict[str, str] = {}
    background: bool = True
    stream: bool = False  # somebody reads the answer while it is generated
    sampling: StoredSampling = StoredSampling()
    stop: tuple[str, ...] = ()
    messages: tuple[StoredTurn, ...] = ()


def read_body(stored: object) -> RequestBody:
    """The body of a stored row; raises UnreadableBody."""
    try:
        return RequestBody.model_validate(stored)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise UnreadableBody(where) from error
