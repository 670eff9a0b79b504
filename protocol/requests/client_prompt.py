"""Makes the prompt of the messages, texts or token ids that a client sends, and names its kind of request."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Discriminator, Field, Tag

from inference.prompts.model_prompt import ModelPrompt
from protocol.field_types import Text
from protocol.limits.prompt_limits import PromptLimits
from protocol.requests.options import TokenId
from request_body import Effort, RequestBody, StoredTool, StoredTurn, TemplateVariable

DIGEST_CHARACTERS = 12  # hex digits, 48 bits: two of 10,000 distinct instructions collide with a chance of 2e-7
SYSTEM_ROLES = ("system", "developer")

MOST_PROMPTS = 128  # prompts of one call; each is a request of its own. Not tuned
PromptText = Annotated[Text, Field(min_length=1)]
MOST_PROMPT_IDS = 2**17  # token ids of one prompt, and of a call of /detokenize; no served model reads more. Not tuned
PromptIds = Annotated[list[TokenId], Field(min_length=1, max_length=MOST_PROMPT_IDS)]
Prompt = str | list[int] | list[str] | list[list[int]]


def prompt_of_turns(
    instructions: str | None,
    turns: Sequence[StoredTurn],
    tools: Sequence[StoredTool] = (),
    *,
    continues: bool = False,
    reasoning: Effort | None = None,
    variables: Mapping[str, TemplateVariable] | None = None,
) -> ModelPrompt:
    """Returns the prompt of a conversation with the definitions of these functions.

    System messages that open the conversation join the instructions. A single user message is the user input; of a
    longer conversation the user input is a transcript. If the answer `continues` the last turn, that turn stays open.
    The chat template gets `reasoning` and the further `variables`.
    """
    opening = opening_turns(turns)
    system = "\n\n".join(part for part in (instructions, *(turn.content for turn in turns[:opening])) if part)
    later = turns[opening:]
    told = RequestBody(reasoning=reasoning, template_variables=dict(variables or {}))
    if len(later) == 1 and later[0].role == "user" and not tools:
        return ModelPrompt(system, later[0].content, told)
    conversation = tuple(
        turn.model_copy(update={"role": "system"}) if turn.role == "developer" else turn for turn in later
    )
    transcript = "\n\n".join(f"{turn.role}: {_transcript(turn)}" for turn in conversation)
    messages = (StoredTurn(role="system", content=system), *conversation) if system else conversation
    asked = told.model_copy(update={"messages": messages, "tools": tuple(tools), "continues": continues})
    return ModelPrompt(system, transcript, asked)


def opening_turns(turns: Sequence[StoredTurn]) -> int:
    """Returns the number of system messages with which a conversation begins, or 0 if it has no other messages."""
    return next((n for n, turn in enumerate(turns) if turn.role not in SYSTEM_ROLES), 0)


def _transcript(turn: StoredTurn) -> str:
    return "\n".join([turn.content, *(f"{call.name}({call.arguments})" for call in turn.tool_calls)]).strip()


def application_name(metadata: Mapping[str, str], instructions: str) -> str:
    """Returns the client's name for this kind of request, or a digest of the instructions if it gave none."""
    return metadata.get("application") or hashlib.sha256(instructions.encode()).hexdigest()[:DIGEST_CHARACTERS]


def kind_of_prompt(value: object) -> str | None:
    """Returns the tag of the union's branch that a prompt belongs to, by its first entry."""
    if isinstance(value, str):
        return "<text>"
    if not isinstance(value, list) or not value:
        return None
    first = value[0]
    return {str: "<texts>", int: "<ids>", list: "<lists>"}.get(type(first))


CompletionPrompt = Annotated[
    Annotated[PromptText, Tag("<text>")]
    | Annotated[PromptIds, Tag("<ids>")]
    | Annotated[list[PromptText], Field(min_length=1, max_length=MOST_PROMPTS), Tag("<texts>")]
    | Annotated[list[PromptIds], Field(min_length=1, max_length=MOST_PROMPTS), Tag("<lists>")],
    Discriminator(
        kind_of_prompt,
        custom_error_type="prompt",
        custom_error_message="must be a text, a list of token ids, or a list of either, and not be empty",
    ),
]


def client_prompts(prompt: Prompt, limits: PromptLimits) -> list[ModelPrompt]:
    """Returns the prompts of a call, with their texts if it has token ids; does not check ids or lengths."""
    several = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    return [
        ModelPrompt("", one, RequestBody(raw=True)) if isinstance(one, str) else _of_ids(one, limits) for one in several
    ]


def _of_ids(ids: list[int], limits: PromptLimits) -> ModelPrompt:
    known = limits.prompt_format.vocabulary_size
    decodable = [one for one in ids[: limits.max_prompt_tokens] if known is None or one < known]
    text = limits.prompt_format.decode(decodable)
    return ModelPrompt("", text, RequestBody(raw=True, prompt_ids=tuple(ids)))
