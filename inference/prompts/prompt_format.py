"""Turns a request into the model's token ids and an answer into text, by chat template and tokenizer, without torch.

The web process counts tokens with the same code, so its counts are those that the worker prefills. A special token in a
user's text, such as a literal `<eos>`, is encoded as plain text and never becomes the special token.
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tokenizers import Tokenizer

from inference.answer_parts import CHANNEL_MARKS, find_answer_form
from inference.answer_text import Detokenizer, bytes_of_token, storable
from inference.engine_errors import UnreadableModel
from inference.isolated_calls import IsolatedCalls
from inference.json_grammar import FormatChecks
from inference.model_directory.chat_template import (
    CLOCK,
    clients_variables,
    clock,
    compile_chat_template,
    read_chat_templates,
    system_as_user,
    variables_of,
    with_short_ids,
)
from inference.model_directory.generation_defaults import GenerationDefaults, generation_defaults
from inference.model_directory.model_files import read_json
from inference.model_directory.model_tokenizer import load_tokenizer
from inference.prompts.request_tokens import NEXT_TURN, ChatEnding, Turn
from inference.tool_calls import FURTHER_MARKS, MARKS
from request_body import PLAIN, AnswerForm

TAIL_TOKENS = 16  # a prompt's last tokens are read for a tag of thinking; such tags have fewer than this. Not tuned
ANCHOR = "a"  # tokens that continue a text are decoded behind this: some tokenizers decode a first token differently
# Splits special tokens in users' texts. Unicode reserves these characters for internal use, so no template contains
# them, and no client knows which of 2^60 strings of them this is.
_SHIELD = "".join(chr(0xFDD0 + secrets.randbelow(32)) for _ in range(12))
_END = _SHIELD[::-1] + "\ufdd0"  # marks the end of the message that an answer continues


class PromptFormat:
    """Encodes prompts for one model and decodes its answers."""

    def __init__(
        self,
        name: str,
        vocabulary: str,
        template: str | None,
        special_tokens: dict[str, str] | None = None,
        tool_template: str | None = None,
        context_tokens: int | None = None,
        long_prompts: IsolatedCalls | None = None,
        embedded_tokens: int | None = None,
        generation: GenerationDefaults | None = None,
        splits_special: bool = False,
    ) -> None:
        """`vocabulary` is the text of a tokenizer.json; `special_tokens` are passed to the template by name.

        Chats with tools are rendered by `tool_template` if there is one. The model has an embedding for the ids below
        `embedded_tokens`, which may be fewer or more than the vocabulary. `splits_special`: it reads special tokens in
        prompts as plain text, whoever wrote them.
        """
        self.name, self.context_tokens, self.long_prompts = name, context_tokens, long_prompts
        self.generation = generation or GenerationDefaults()
        self._template = compile_chat_template(template) if template is not None else None
        for_tools = tool_template or template or ""
        self._tool_template = compile_chat_template(for_tools)
        self.takes_tools = "tools" in variables_of(for_tools)
        variables = clients_variables(template or "") | clients_variables(for_tools)
        self.template_variables = variables - (special_tokens or {}).keys()
        self.reads_clock = CLOCK in f"{template}{for_tools}"
        self._form = find_answer_form(for_tools)
        self._named_tokens = special_tokens or {}
        self._tokenizer = Tokenizer.from_str(vocabulary)
        self._tokenizer.encode_special_tokens = splits_special
        self._literal = Tokenizer.from_str(vocabulary)
        self._literal.encode_special_tokens = True
        known = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0) + 1
        self.vocabulary_size = known if embedded_tokens is None else min(known, embedded_tokens)
        self._anchor = self._literal.encode(ANCHOR, add_special_tokens=False).ids
        self._byte_level = "ByteLevel" in repr(self._tokenizer.decoder)
        added = self._tokenizer.get_added_tokens_decoder().values()
        longest_first = sorted((token.content for token in added if token.special), key=len, reverse=True)
        marks = {self._form.opening, self._form.closing, *MARKS, *FURTHER_MARKS, *CHANNEL_MARKS}
        kept = {token for token in marks if token in for_tools}
        self._left_out = frozenset(
            number
            for number, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special and token.content not in kept
        )
        self._special = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")

    @cached_property
    def formats(self) -> FormatChecks:
        """The checks of formats with this model's tokens, as the engine's; their process starts at the first check."""
        return FormatChecks(
            self._tokenizer.to_str(), eos_id=self._tokenizer.token_to_id(self._named_tokens.get("eos_token", ""))
        )

    def encode(self, instructions: str, input: str, ending: ChatEnding = NEXT_TURN) -> list[int]:
        """Returns the prompt's token ids, by the chat template; without one, of both texts joined by a blank line."""
        if self._template is None:
            return list(self._literal.encode(f"{instructions}\n\n{input}" if instructions else input).ids)
        asked = [("user", input)]
        return self._encode_chat(_messages([("system", instructions), *asked] if instructions else asked), ending)

    def encode_conversation(self, turns: Sequence[Turn], ending: ChatEnding = NEXT_TURN) -> list[int]:
        """Returns the token ids of (role, content) turns; raises TemplateError if the template refuses them."""
        if self._template is None:
            transcript = "\n\n".join(f"{role}: {content}" for role, content in turns)
            return list(self._literal.encode(transcript if ending.continues else f"{transcript}\n\nassistant:").ids)
        return self._encode_chat(_messages(turns), ending)

    def encode_messages(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], ending: ChatEnding = NEXT_TURN
    ) -> list[int]:
        """Returns the token ids of a chat with tools; raises jinja2's TemplateError if the template refuses it."""
        if self._template is None or not self.takes_tools:
            raise TemplateError("it knows no tools")
        try:
            return self._encode_chat(messages, ending, tools)
        except TemplateError:
            shortened = with_short_ids(messages)
            if shortened == list(messages):
                raise
            return self._encode_chat(shortened, ending, tools)

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
        """Returns an answer's text without special tokens, except the marks of thinking and of calls.

        NUL, which Postgres cannot store, becomes U+FFFD. If the answer `continues` a text, it keeps a leading blank,
        which some tokenizers drop.
        """
        if continues:
            return self.decode([*self._anchor, *ids])[len(self.decode(self._anchor)) :]
        shown = [one for one in ids if one not in self._left_out]
        return storable(self._tokenizer.decode(shown, skip_special_tokens=False))

    @property
    def thinks(self) -> bool:
        """Returns whether the chat template has tags of thinking."""
        return self._form != PLAIN

    def answer_form(self, prompt_ids: Sequence[int], begun: str = "") -> AnswerForm:
        """Returns the form of the answer to this prompt; `begun` is the message that it continues."""
        opening, closing = self._form.opening, self._form.closing
        if begun:  # the begun message itself shows whether it is still thinking
            opened = bool(closing) and begun.rfind(opening) > begun.rfind(closing)
            return self._form.model_copy(update={"opened": True}) if opened else PLAIN
        if not closing:
            return self._form
        end = self._tokenizer.decode(list(prompt_ids[-TAIL_TOKENS:]), skip_special_tokens=False).rstrip()
        return self._form.model_copy(update={"opened": end.endswith(opening)})

    def token_bytes(self, id: int) -> bytes:
        """Returns the bytes that this token adds to an answer, or none if the vocabulary has no such token."""
        return bytes_of_token(self._tokenizer.id_to_token(id) or "", self._byte_level)

    def _encode_chat(
        self, messages: Sequence[Mapping[str, Any]], ending: ChatEnding, tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Returns the token ids of a chat; a template that takes no system message gets it as the user's."""
        if any(message["role"] == "system" for message in messages) and not self._takes_later_system:
            first = self._takes_first_system and messages[0]["role"] == "system"
            messages = system_as_user(messages, after=int(first))
        try:
            rendered = self._render(messages, ending, tools)
        except TemplateError:  # some templates refuse nothing but system messages
            if not any(message["role"] == "system" for message in messages):
                raise
            rendered = self._render(system_as_user(messages), ending, tools)
        if _SHIELD not in rendered:
            return list(self._tokenizer.encode(rendered, add_special_tokens=False).ids)
        # The shield split every special token in users' texts, so those that are still whole come from the template.
        ids: list[int] = []
        for position, piece in enumerate(self._special.split(rendered)):
            encoding = self._tokenizer if position % 2 else self._literal
            ids += encoding.encode(piece.replace(_SHIELD, ""), add_special_tokens=False).ids
        return ids

    @cached_property
    def _takes_first_system(self) -> bool:
        return self._takes(("system", "user"))

    @cached_property
    def _takes_later_system(self) -> bool:
        """Whether a system message may stand anywhere; Gemma's templates refuse it only at every second place."""
        return self._takes_first_system and self._takes(("user", "assistant", "system", "user"))

    def _takes(self, roles: Sequence[str]) -> bool:
        try:
            self._render(_messages([(role, f"message of the {role}") for role in roles]), NEXT_TURN, ())
        except TemplateError:
            return False
        return True

    def _render(
        self, messages: Sequence[Mapping[str, Any]], ending: ChatEnding, tools: Sequence[Mapping[str, Any]]
    ) -> str:
        """Returns the rendered chat, special tokens in its texts shielded; raises TemplateError."""
        template = self._tool_template if tools else self._template
        if template is None:
            raise TemplateError("there is none")

        def shielded(text: str) -> str:
            return self._special.sub(lambda token: token[0][0] + _SHIELD + token[0][1:], text)

        shown = each_text(list(messages), shielded)
        if ending.continues:
            shown[-1]["content"] += f"{_END} "
        try:
            rendered = template.render(
                messages=shown,
                tools=each_text(list(tools), shielded) or None,
                documents=None,
                strftime_now=clock(ending.rendered_at),
                add_generation_prompt=not ending.continues,
                **each_text(ending.variables, shielded),
                **self._named_tokens,
            )
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            # the messages or tools have fields or types that the template does not expect
            raise TemplateError(f"it cannot render them ({type(error).__name__})") from error
        if any(shielded(one["content"]).strip() not in rendered for one in messages if one["role"] == "system"):
            raise TemplateError("it leaves out a system message")
        return _upto_end(rendered, bool(messages[-1]["content"].strip())) if ending.continues else rendered


def _upto_end(rendered: str, has_text: bool) -> str:
    """Returns a rendered chat up to the end of its last message; raises TemplateError.

    If the template strips messages, a last message that `has_text` ends without white space.
    """
    before, found, after = rendered.rpartition(_END)
    if not found:
        raise TemplateError("it does not show the end of the last message, so no answer can continue it")
    return before.rstrip() if has_text and not after.startswith(" ") else before


def _messages(turns: Sequence[Turn]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """Returns the JSON value with `change` applied to each text in it, names in objects included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(name): each_text(part, change) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [each_text(part, change) for part in value]
    return value


def load_prompt_format(model: str) -> PromptFormat:
    """Reads the prompt format of a model directory or hub id; raises UnreadableModel."""
    known = load_tokenizer(model)
    config = read_json(model, "config.json")
    try:
        templates = read_chat_templates(model)
        return PromptFormat(
            Path(model).name,
            known.tokenizer.to_str(),
            templates.chats,
            known.special_tokens,
            templates.with_tools,
            _stated(config, "max_position_embeddings", "n_positions"),  # older models have the latter
            IsolatedCalls("inference.prompts.prompt_encoding:encoder", model),
            _stated(config, "vocab_size"),
            generation_defaults(read_json(model, "generation_config.json")),
            known.splits_special,
        )
    except (TemplateError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise UnreadableModel(model, f"its chat template is wrong: {' '.join(str(error).split())}") from error


def _stated(config: dict[str, Any], *names: str) -> int | None:
    """Returns the number that a config.json, or its part for text in a model of several media, has by these names."""
    parts = [part for part in (config, config.get("text_config")) if isinstance(part, dict)]
    found = (part.get(name) for part in parts for name in names)
    return next((number for number in found if isinstance(number, int) and number > 0), None)
