"""/tokenize and /detokenize as vLLM has them: text or a chat to token ids, and back."""

from time import sleep
from typing import Annotated, Literal

from apiflask import APIBlueprint
from pydantic import Field, ValidationInfo, field_validator

from inference.prompts.model_prompt import ModelPrompt
from protocol.api_objects import ApiObject
from protocol.chat.chat_schemas import ChatMessage
from protocol.client_errors import InvalidRequest
from protocol.field_types import Body, Text
from protocol.requests.client_prompt import MOST_PROMPT_IDS, prompt_of_turns
from protocol.requests.options import TokenId
from protocol.requests.tools import MOST_TOOLS, ChatTool, chat_functions
from request_body import RequestBody
from webapp.context.app_context import current_context
from webapp.context.auth import current_tenant

api = APIBlueprint("tokens", __name__, tag="Tokens")
IDS_A_TURN = 1000  # ids whose texts take about a millisecond


class Tokenize(Body):
    """POST /tokenize: a prompt as it is, or the messages of a chat."""

    model: Text | None = Field(default=None, description="Name of the served model")
    prompt: Text | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1000)] | None = None
    tools: Annotated[list[ChatTool], Field(max_length=MOST_TOOLS)] | None = None
    add_generation_prompt: Literal[True] | None = Field(default=None, description="As every chat has it")
    add_special_tokens: Literal[True] | None = Field(default=None, description="As completions have them")
    return_token_strs: bool | None = None

    @field_validator("messages")
    @classmethod
    def refuse_both(cls, value: list[ChatMessage] | None, others: ValidationInfo) -> list[ChatMessage] | None:
        """Refuses a prompt and messages at once."""
        if value is not None and others.data.get("prompt") is not None:
            raise ValueError("either a prompt or messages")
        return value


class TokenizedText(ApiObject):
    """Token ids, with their texts if they were asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenize(Body):
    """POST /detokenize."""

    model: Text | None = Field(default=None, description="Name of the served model")
    tokens: Annotated[list[TokenId], Field(max_length=MOST_PROMPT_IDS)]


class DecodedPrompt(ApiObject):
    """The text of token ids."""

    prompt: str


@api.post("/tokenize")
@api.input(Tokenize)
@api.output(TokenizedText)
@api.doc(summary="Encode a text or a chat", security="ApiKey", responses=[400, 401, 403, 404, 413, 429, 503])
def tokenize(json_data: Tokenize) -> TokenizedText:
    """Returns the token ids that the model reads; refuses what is longer than the longest prompt."""
    limits = current_context().prompt_limits
    if json_data.model is not None:
        limits = limits.of(json_data.model)
    if json_data.messages is None:
        param, prompt = "prompt", ModelPrompt("", json_data.prompt or "", RequestBody(raw=True))
    else:
        param, turns = "messages", [message.turn for message in json_data.messages]
        prompt = prompt_of_turns(None, turns, chat_functions(json_data.tools))
    ids = limits.encode(prompt, param=param, tenant=current_tenant())
    texts = None
    if json_data.return_token_strs:
        texts = []
        for place, one in enumerate(ids):
            if place % IDS_A_TURN == 0:
                sleep(0)  # other calls have their turn
            texts.append(limits.prompt_format.token_bytes(one).decode("utf-8", "replace"))
    return TokenizedText(count=len(ids), max_model_len=limits.longest_tokens, tokens=ids, token_strs=texts)


@api.post("/detokenize")
@api.input(Detokenize)
@api.output(DecodedPrompt)
@api.doc(summary="Decode token ids", security="ApiKey", responses=[400, 401, 403, 404, 413, 429, 503])
def detokenize(json_data: Detokenize) -> DecodedPrompt:
    """Returns the text of tokens, without special ones."""
    limits = current_context().prompt_limits
    if json_data.model is not None:
        limits = limits.of(json_data.model)
    if len(json_data.tokens) > limits.longest_tokens:
        raise InvalidRequest(
            f"Invalid 'tokens': a prompt and its answer have at most {limits.longest_tokens:,} tokens here.",
            param="tokens",
        )
    limits.check_ids(json_data.tokens, param="tokens")
    return DecodedPrompt(prompt=limits.prompt_format.decode(json_data.tokens))
