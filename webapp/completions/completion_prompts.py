"""The prompts of /v1/completions: a text, token ids, or a list of either; each is read as it is."""

from typing import Annotated

from pydantic import Discriminator, Field, Tag

from inference.model_prompt import ModelPrompt
from request_body import RequestBody
from webapp.field_types import Text
from webapp.limits.prompt_limits import PromptLimits
from webapp.options import TokenId

MOST_PROMPTS = 128  # of one call; each is a request of its own. Not tuned

PromptText = Annotated[Text, Field(min_length=1)]
PromptIds = Annotated[list[TokenId], Field(min_length=1)]


def kind_of_prompt(value: object) -> str | None:
    """The tag of the union's branch that a prompt belongs to, by its first entry."""
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
Prompt = str | list[int] | list[str] | list[list[int]]


def client_prompts(prompt: Prompt, limits: PromptLimits) -> list[ModelPrompt]:
    """Each prompt; of token ids the text is stored too. Whether they are too long, or unknown, is not checked here."""
    several = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    return [
        ModelPrompt("", one, RequestBody(raw=True)) if isinstance(one, str) else _of_ids(one, limits) for one in several
    ]


def _of_ids(ids: list[int], limits: PromptLimits) -> ModelPrompt:
    known = limits.prompt_format.vocabulary_size
    decodable = [one for one in ids[: limits.max_prompt_tokens] if known is None or one < known]
    text = limits.prompt_format.decode(decodable)
    return ModelPrompt("", text, RequestBody(raw=True, prompt_ids=tuple(ids)))
