"""Makes the function with which separate processes encode long prompts."""

from collections.abc import Callable

from jinja2 import TemplateError
from pydantic_core import from_json, to_json

from inference.prompts.model_prompt import ModelPrompt
from inference.prompts.prompt_format import load_prompt_format
from request_body import RequestBody

# The tokens of a prompt's beginning are counted first. It has this many characters for each token that the prompt may
# have. Most texts have 3 to 5 characters a token, so a prompt far beyond its limit is refused early. Not tuned.
COUNTED_CHARACTERS = 8
SURPLUS = 1.25  # a conversation's transcript may have more tokens than its rendering, which the limit is for; not tuned


def encoder(model: str) -> Callable[[str], str]:
    """Returns the function that `ModelPrompt.encode` calls: from a prompt to its ids, or to why it is refused."""
    tokens = load_prompt_format(model)

    def encode(asked: str) -> str:
        instructions, text, body, most_tokens = from_json(asked)
        prompt = ModelPrompt(instructions, text, RequestBody.model_validate(body))
        if most_tokens is not None:
            first = tokens.encode_raw((instructions + text)[: COUNTED_CHARACTERS * most_tokens])
            if len(first) > SURPLUS * most_tokens:
                return to_json(first).decode()
        try:
            return to_json(prompt.encode_here(tokens)).decode()
        except TemplateError as error:
            return to_json(str(error)).decode()

    return encode
