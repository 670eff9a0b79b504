"""Turns a request into the model's token ids and an answer into text, by chat template and tokenizer, without torch.

The web process counts tokens with the same code, so its counts are those that the worker prefills. A special token in a
user's text, such as a literal `<eos>`, is encoded as plain text and never becomes the special token.
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError
from tokenizers import Tokenizer

from inference.answer_text import Detokenizer, bytes_of_token
from inference.chat_template import compile_chat_template, find_chat_template, takes_tools
from inference.engine_errors import UnreadableModel
from inference.isolated_calls import IsolatedCalls
from inference.model_files import read_json, read_text
from inference.model_tokenizer import load_tokenizer
from inference.request_tokens import NEXT_TURN, ChatEnding, Turn

ANCHOR = "a"  # before tokens that continue a text, because some tokenizers decode the first token of a text differently
# Splits special tokens in users' texts. Unicode reserves these characters for internal use, so no template contains
# them, and no client knows which of 2^60 strings of them this is.
_SHIELD = "".join(chr(0xFDD0 + secrets.randbelow(32)) for _ in range(12))


class PromptFormat:
    """Encodes prompts for one model and decodes its answers."""

    def __init__(
        self,
        name: str,
        vocabulary: str,
        template: Template | None,
        special_tokens: dict[str, str] | None = None,
        takes_tools: bool = False,
        context_tokens: int | None = None,
        long_prompts: IsolatedCalls | None = None,
        embedded_tokens: int | None = None,
    ) -> None:
        """`vocabulary` is the text of a tokenizer.json; `special_tokens` are passed to the template by name.

        The model has an embedding for the ids below `embedded_tokens`, which may be fewer or more than the vocabulary.
        """
        self.name, self.takes_tools, self.context_tokens = name, takes_tools, context_tokens
        self.long_prompts = long_prompts
        self._template = template
        self._named_tokens = special_tokens or {}
        self._tokenizer = Tokenizer.from_str(vocabulary)
        self._literal = Tokenizer.from_str(vocabulary)
        self._literal.encode_special_tokens = True
        known = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0) + 1
        self.vocabulary_size = known if embedded_tokens is None else min(known, embedded_tokens)
        self._anchor = self._literal.encode(ANCHOR, add_special_tokens=False).ids
        self._byte_level = "ByteLevel" in repr(self._tokenizer.decoder)
        added = self._tokenizer.get_added_tokens_decoder().values()
        longest_first = sorted((token.content for token in added if token.special), key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")

    def encode(self, instructions: str, input: str, ending: ChatEnding = NEXT_TURN) -> list[int]:
        """Returns the prompt's token ids: by the chat template or, without one, of both texts and a blank line."""
        joined = f"{instructions}\n\n{input}" if instructions else input
        if self._template is None:
            return list(self._literal.encode(joined).ids)
        if not instructions:
            return self._encode_chat(self._template, _messages([("user", input)]), ending)
        try:
            return self._encode_chat(self._template, _messages([("system", instructions), ("user", input)]), ending)
        except TemplateError:  # some templates, such as Gemma's, refuse a system message
            return self._encode_chat(self._template, _messages([("user", joined)]), ending)

    def encode_conversation(self, turns: Sequence[Turn], ending: ChatEnding = NEXT_TURN) -> list[int]:
        """Returns the token ids of (role, content) turns; raises TemplateError if the template refuses them."""
        if self._template is None:
            transcript = "\n\n".join(f"{role}: {content}" for role, content in turns)
            return list(self._literal.encode(transcript if ending.continues else f"{transcript}\n\nassistant:").ids)
        try:
            return self._encode_chat(self._template, _messages(turns), ending)
        except TemplateError:  # some templates refuse system messages alone
            if any(role != "system" for role, _ in turns):
                raise
            return self.encode("", "\n\n".join(content for _, content in turns), ending)

    def encode_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        ending: ChatEnding = NEXT_TURN,
    ) -> list[int]:
        """Returns the token ids of a chat with tools; raises jinja2's TemplateError if the template refuses it."""
        if self._template is None or not self.takes_tools:
            raise TemplateError("it knows no tools")
        return self._encode_chat(self._template, messages, ending, tools)

    def encode_raw(self, text: str) -> list[int]:
        """Returns the token ids of a prompt as it is; special tokens in it are those of the model."""
        return list(self._tokenizer.encode(text).ids)

    def encode_request(
        self, instructions: str, input: str, turns: Sequence[Turn], ending: ChatEnding = NEXT_TURN
    ) -> list[int]:
        """Returns the token ids of a request's prompt: of its conversation if it has `turns`, else of its two texts."""
        return self.encode_conversation(turns, ending) if turns else self.encode(instructions, input, ending)

    @property
    def detokenizer(self) -> Detokenizer:
        """Returns the tokenizer, which finds stop strings in an answer's tokens."""
        return self._tokenizer

    def count(self, text: str) -> int:
        """Returns the number of tokens in a text, without the chat template."""
        return len(self._literal.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int], *, continues: bool = False) -> str:
        """Returns an answer's text without special tokens; NUL, which Postgres cannot store, becomes U+FFFD.

        If the answer `continues` a text, it keeps a leading blank, which some tokenizers drop.
        """
        if continues:
            return self.decode([*self._anchor, *ids])[len(self.decode(self._anchor)) :]
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True)).replace("\0", "\ufffd")

    def token_bytes(self, id: int) -> bytes:
        """Returns the bytes that this token adds to an answer; none if the vocabulary has no such token."""
        return bytes_of_token(self._tokenizer.id_to_token(id) or "", self._byte_level)

    def _encode_chat(
        self,
        template: Template,
        messages: Sequence[Mapping[str, Any]],
        ending: ChatEnding,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:

        def shielded(text: str) -> str:
            return self._special.sub(lambda token: token[0][0] + _SHIELD + token[0][1:], text)

        try:
            rendered = template.render(
                messages=_each_text(list(messages), shielded),
                tools=_each_text(list(tools), shielded) or None,
                documents=None,
                add_generation_prompt=not ending.continues,
                **ending.variables,
                **self._named_tokens,
            )
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            # the messages or tools have fields or types that the template does not expect
            raise TemplateError(f"it cannot render them ({type(error).__name__})") from error
        if ending.continues:
            rendered = _upto(rendered, shielded(str(messages[-1]["content"])))
        if _SHIELD not in rendered:
            return list(self._tokenizer.encode(rendered, add_special_tokens=False).ids)
        # The shield split every special token in users' texts, so those that are still whole come from the template.
        ids: list[int] = []
        for position, piece in enumerate(self._special.split(rendered)):
            encoding = self._tokenizer if position % 2 else self._literal
            ids += encoding.encode(piece.replace(_SHIELD, ""), add_special_tokens=False).ids
        return ids


def _upto(rendered: str, last: str) -> str:
    """Returns a rendered chat up to the end of its last message, which templates may strip; raises TemplateError."""
    for text in (last, last.strip()):
        before, found, _ = rendered.rpartition(text)
        if found:
            return before + found
    raise TemplateError("it does not show the last message as it is, so no answer can continue it")


def _messages(turns: Sequence[Turn]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """Returns the JSON value with `change` applied to each text in it, names in objects included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(name): _each_text(part, change) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_each_text(part, change) for part in value]
    return value


def load_prompt_format(model: str) -> PromptFormat:
    """Reads the prompt format of a model directory or hub id; raises UnreadableModel."""
    known = load_tokenizer(model)
    source = find_chat_template(read_json(model, "tokenizer_config.json"), read_text(model, "chat_template.jinja"))
    try:
        template = compile_chat_template(source) if source is not None else None
        knows_tools = source is not None and takes_tools(source)
    except (TemplateError, TypeError, AttributeError, RecursionError) as error:
        raise UnreadableModel(model, f"its chat template is wrong: {error}") from error
    config = read_json(model, "config.json")
    return PromptFormat(
        Path(model).name,
        known.tokenizer.to_str(),
        template,
        known.special_tokens,
        knows_tools,
        _context_tokens(config),
        IsolatedCalls("inference.prompt_encoding:encoder", model),
        _embedded_tokens(config),
    )


def _context_tokens(config: dict[str, Any]) -> int | None:
    """Returns the number of positions that a model's config.json states; older models name it `n_positions`."""
    found = (config.get(name) for name in ("max_position_embeddings", "n_positions"))
    return next((positions for positions in found if isinstance(positions, int)), None)


def _embedded_tokens(config: dict[str, Any]) -> int | None:
    """Returns the number of tokens that a model's config.json states; models of several media have a part for text."""
    parts = (config, config.get("text_config"))
    found = (part.get("vocab_size") for part in parts if isinstance(part, dict))
    return next((size for size in found if isinstance(size, int) and size > 0), None)
