"""From what a client sends to the stored prompt: instructions, user input, conversation, application."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DIGEST_CHARACTERS = 12  # hex digits, 48 bits: two of 10,000 distinct instructions collide with a chance of 2e-7


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ClientPrompt:
    """Instructions and user input; for a conversation `messages` has all its turns and `input` their transcript."""

    instructions: str
    input: str
    messages: tuple[Turn, ...] = ()

    @property
    def stored_messages(self) -> list[dict[str, str]]:
        """The turns as the request's row keeps them in `body`."""
        return [{"role": turn.role, "content": turn.content} for turn in self.messages]


def prompt_of_turns(instructions: str | None, turns: Sequence[Turn]) -> ClientPrompt:
    """System messages that open a conversation join the instructions; one user message alone is the user input."""
    opening = 0
    while turns[opening].role in ("system", "developer"):
        opening += 1
    system = "\n\n".join(part for part in (instructions, *(turn.content for turn in turns[:opening])) if part)
    later = turns[opening:]
    if len(later) == 1:
        return ClientPrompt(system, later[0].content)
    conversation = tuple(Turn("system" if turn.role == "developer" else turn.role, turn.content) for turn in later)
    transcript = "\n\n".join(f"{turn.role}: {turn.content}" for turn in conversation)
    return ClientPrompt(system, transcript, (Turn("system", system), *conversation) if system else conversation)


def application_name(metadata: Mapping[str, str], instructions: str) -> str:
    """The client's own name for this kind of request, else a digest of the instructions, which the kind shares."""
    return metadata.get("application") or hashlib.sha256(instructions.encode()).hexdigest()[:DIGEST_CHARACTERS]
