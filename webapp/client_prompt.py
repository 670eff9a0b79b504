"""From the messages that a client sends to the prompt, and the name of its kind of request."""

import hashlib
from collections.abc import Mapping, Sequence

from inference.model_prompt import ModelPrompt
from request_body import RequestBody, StoredTool, StoredTurn

DIGEST_CHARACTERS = 12  # hex digits, 48 bits: two of 10,000 distinct instructions collide with a chance of 2e-7
SYSTEM_ROLES = ("system", "developer")


def prompt_of_turns(
    instructions: str | None, turns: Sequence[StoredTurn], tools: Sequence[StoredTool] = ()
) -> ModelPrompt:
    """Returns the prompt of a conversation in which the model is told of these functions.

    System messages that open the conversation join the instructions. A single user message is the user input; of a
    longer conversation the user input is a transcript.
    """
    opening = opening_turns(turns)
    system = "\n\n".join(part for part in (instructions, *(turn.content for turn in turns[:opening])) if part)
    later = turns[opening:]
    if len(later) == 1 and later[0].role == "user" and not tools:
        return ModelPrompt(system, later[0].content)
    conversation = tuple(
        turn.model_copy(update={"role": "system"}) if turn.role == "developer" else turn for turn in later
    )
    transcript = "\n\n".join(f"{turn.role}: {_said(turn)}" for turn in conversation)
    messages = (StoredTurn(role="system", content=system), *conversation) if system else conversation
    return ModelPrompt(system, transcript, RequestBody(messages=messages, tools=tuple(tools)))


def opening_turns(turns: Sequence[StoredTurn]) -> int:
    """Returns the number of system messages with which a conversation begins."""
    return next((n for n, turn in enumerate(turns) if turn.role not in SYSTEM_ROLES), len(turns))


def _said(turn: StoredTurn) -> str:
    return "\n".join([turn.content, *(f"{call.name}({call.arguments})" for call in turn.tool_calls)]).strip()


def application_name(metadata: Mapping[str, str], instructions: str) -> str:
    """Returns the client's name for this kind of request, else a digest of the instructions, which the kind shares."""
    return metadata.get("application") or hashlib.sha256(instructions.encode()).hexdigest()[:DIGEST_CHARACTERS]
