"""Fields beside OpenAI's by which clients of vLLM and the like steer sampling; every call that generates has them."""

from typing import Annotated, Literal

from pydantic import Field

from webapp.field_types import Body

MOST_STOP_TOKENS = 64  # a row compares each of its tokens with them; not tuned otherwise
LARGEST_TOKEN_ID = 2**31 - 1  # of an int4 column; no vocabulary comes near

TokenId = Annotated[int, Field(ge=0, le=LARGEST_TOKEN_ID)]


class MoreSampling(Body):
    """What vLLM's API adds to OpenAI's, under the same names; values that ask for nothing are accepted too."""

    top_k: Annotated[int, Field(ge=-1, le=LARGEST_TOKEN_ID)] | None = Field(
        default=None, description="Sample among the k likeliest tokens; 0 or -1: among all"
    )
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = Field(
        default=None, description="Sample among the tokens at least so likely as this share of the likeliest"
    )
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)] | None = Field(
        default=None, description="Above 1: tokens that the prompt or the answer has become less likely"
    )
    min_tokens: Annotated[int, Field(ge=0, le=LARGEST_TOKEN_ID)] | None = Field(
        default=None, description="The answer does not end by itself before so many tokens"
    )
    ignore_eos: bool | None = Field(default=None, description="true: the answer goes on to its limit")
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MOST_STOP_TOKENS)] | None = Field(
        default=None, description="Each of these tokens ends the answer"
    )
    skip_special_tokens: Literal[True] | None = None
    include_stop_str_in_output: Literal[False] | None = None
    use_beam_search: Literal[False] | None = None
