"""The parameters of policies, predictors and engine in MAGNUS_PARAMETERS: hardly any service needs another value."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_settings import NoDecode


class Parameters(BaseModel):
    """The values of `NAME=VALUE,NAME=VALUE`, validated; `str` returns those that were given, in this form."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    magnus: Literal["chosen", "published"] = Field(
        "chosen", description="parameters of the policy magnus: chosen here, or as in the paper (docs/equations.md)"
    )
    wma_threshold: int | None = Field(None, ge=0, description="Φ of Magnus's Algorithm 1; otherwise chosen by costs")
    slice_tokens: int | None = Field(None, ge=1, description="slice length S of scls; otherwise chosen by costs")
    bin_tokens: int | None = Field(
        None, ge=1, description="bin width of sequence; otherwise a fifth of the mean length seen, at most 50"
    )
    favour: Literal["mean", "tail", "goodput"] = Field(
        "mean", description="fusion's order: least mean, or lower P99, or more answers soon for their length"
    )
    background_share: float = Field(
        0.6, gt=0, le=1, description="share of the memory that bulk jobs may fill beside others, which they slow down"
    )
    refit_length_s: float = Field(180.0, gt=0, description="interval of the length predictor's refits (Magnus III-B)")
    refit_serving_s: float = Field(120.0, gt=0, description="interval of the serving time estimator's (Magnus III-D)")
    perception_form: Literal["number", "len_token"] = Field(
        "number", description="how perception states a length: printed, or by the state of a [LEN] token"
    )
    perception_target: Literal["longest", "mean"] = Field(
        "longest", description="the length that perception is tuned to if a prompt has several answers"
    )
    perception_epochs: int = Field(3, ge=1, le=1000, description="epochs of perception's tuning")
    prefill_tokens: int | None = Field(
        None, ge=1, description="most prompt tokens of joiners between two tokens of rows; otherwise by measured costs"
    )
    prefix_cache: bool = Field(True, description="equal beginnings of a tenant's prompts are computed once")
    guess_tokens: int = Field(
        16, ge=0, le=31, description="most tokens guessed at once where an answer copies, while that pays; 0: none"
    )
    twins: Literal["shared", "apart"] = Field(
        "shared", description="equal greedy requests of a tenant that wait at the same time are computed once, or each"
    )
    loops: Literal["stop", "park", "off"] = Field(
        "stop",
        description="answers that repeat themselves, as their prompts do not, are ended, or go on to their limits as "
        "background work or as before",
    )
    schemas: Literal["closed", "literal"] = Field(
        "closed", description="objects that say nothing about additionalProperties have none, or any as it stands"
    )

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in self.model_dump(exclude_unset=True).items())


def _named_values(value: Any) -> Any:
    """Returns the values of `NAME=VALUE,NAME=VALUE` by name; anything that is not a text is returned as it is."""
    if not isinstance(value, str):
        return value
    pairs = [part.partition("=") for part in value.split(",") if part.strip()]
    if not all(equals for _, equals, _ in pairs):
        raise ValueError("write NAME=VALUE, separated by commas: slice_tokens=64,guess_tokens=0")
    return {name.strip(): given.strip() for name, _, given in pairs}


GivenParameters = Annotated[Parameters, NoDecode, BeforeValidator(_named_values)]
