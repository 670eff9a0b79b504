"""Types of single values in bodies and queries: what they refuse never reaches the database."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

LONGEST_KEY, LONGEST_VALUE, MOST_PAIRS = 64, 512, 16  # OpenAI's bounds of `metadata`


def storable(value: str) -> str:
    """Text that Postgres can hold; raises ValueError for NUL (lone surrogates end at the JSON parser)."""
    if "\0" in value:
        raise ValueError("text must not contain NUL")
    return value


Text = Annotated[str, AfterValidator(storable), Field(json_schema_extra={"pattern": r"^[^\u0000]*$"})]
Metadata = Annotated[
    dict[
        Annotated[Text, Field(min_length=1, max_length=LONGEST_KEY)], Annotated[Text, Field(max_length=LONGEST_VALUE)]
    ],
    Field(max_length=MOST_PAIRS),
]
Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]
TopP = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
StopString = Annotated[Text, Field(min_length=1, max_length=64)]
StopStrings = Annotated[list[StopString], Field(max_length=4)]


class Body(BaseModel):
    """A JSON object from a client: no unknown field, no silent conversion."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
