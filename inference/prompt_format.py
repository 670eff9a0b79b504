"""Turns a request into the model's token ids and an answer into text, by chat template and tokenizer, without torch.

The web process counts tokens with the same code, so its counts are those that the worker prefills. A special token in a
user's text, such as a literal `<eos>`, is encoded as plain text and never becomes the special token.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from jinja2 import Template, TemplateError
from tokenizers import Tokenizer

from inference.chat_template import chat_template_of, compile_chat_template, special_tokens_of
from inference.engine_errors import UnreadableTokenizer
from inference.request_tokens import Turn
from inference.stop_strings import Detokenizer
from inference.token_bytes import bytes_of_token

_NONCHARACTER = "\ufdd0"  # reserved by Unicode for internal use, so no template contains it


class PromptFormat:
    """Encodes prompts for one model and decodes its answers."""

    def __init__(
        self, name: str, vocabulary: str, template: Template | None, special_tokens: dict[str, str] | None = None
    ) -> None:
        """`vocabulary` is the text of a tokenizer.json; `special_tokens` are passed to the template by name."""
        self.name = name
        self._template = template
        self._named_tokens = special_tokens or {}
        self._tokenizer = Tokenizer.from_str(vocabulary)
        self._literal = Tokenizer.from_str(vocabulary)
        self._literal.encode_special_tokens = True
        self._byte_level = "ByteLevel" in repr(self._tokenizer.decoder)
        added = self._tokenizer.get_added_tokens_decoder().values()
        longest_first = sorted((token.content for token in added if token.special), key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")

    def encode(self, instructions: str, input: str) -> list[int]:
        """Token ids of the whole prompt: the chat template's, or without one those of both texts and a blank line."""
        joined = f"{instructions}\n\n{input}" if instructions else input
        if self._template is None:
            return list(self._literal.encode(joined).ids)
        if not instructions:
            return self._encode_chat(self._template, [("user", input)])
        try:
            return self._encode_chat(self._template, [("system", instructions), ("user", input)])
        except TemplateError:  # some templates, such as Gemma's, refuse a system message
            return self._encode_chat(self._template, [("user", joined)])

    def encode_conversation(self, turns: Sequence[Turn]) -> list[int]:
        """Token ids of (role, content) turns; raises jinja2's TemplateError if the template refuses their order."""
        if self._template is None:
            transcript = "".join(f"{role}: {content}\n\n" for role, content in turns)
            return list(self._literal.encode(f"{transcript}assistant:").ids)
        return self._encode_chat(self._template, turns)

    def encode_request(self, instructions: str, input: str, turns: Sequence[Turn]) -> list[int]:
        """Token ids of a request's prompt: of its conversation if it has `turns`, else of its two texts."""
        return self.encode_conversation(turns) if turns else self.encode(instructions, input)

    @property
    def detokenizer(self) -> Detokenizer:
        """What finds stop strings in an answer's tokens."""
        return self._tokenizer

    def count(self, text: str) -> int:
        """Number of tokens in a text, without the chat template."""
        return len(self._literal.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an answer without special tokens; NUL, which Postgres cannot store, becomes U+FFFD."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True)).replace("\0", "\ufffd")

    def token_bytes(self, id: int) -> bytes:
        """What this token adds to an answer; nothing if the vocabulary has no such token."""
        return bytes_of_token(self._tokenizer.id_to_token(id) or "", self._byte_level)

    def _encode_chat(self, template: Template, turns: Sequence[Turn]) -> list[int]:
        shield = _NONCHARACTER
        while any(shield in content for _, content in turns):
            shield += _NONCHARACTER
        shielded = [
            {"role": role, "content": self._special.sub(lambda token: token[0][0] + shield + token[0][1:], content)}
            for role, content in turns
        ]
        rendered = template.render(
            messages=shielded, tools=None, documents=None, add_generation_prompt=True, **self._named_tokens
        )
        if shield not in rendered:
            return list(self._tokenizer.encode(rendered, add_special_tokens=False).ids)
        # The shield split every special token in users' texts, so those that are still whole come from the template.
        ids: list[int] = []
        for position, piece in enumerate(self._special.split(rendered)):
            encoding = self._tokenizer if position % 2 else self._literal
            ids += encoding.encode(piece.replace(shield, ""), add_special_tokens=False).ids
        return ids


def load_prompt_format(model: str) -> PromptFormat:
    """Read the prompt format of a model directory or hub id; raises UnreadableTokenizer."""
    vocabulary = _read(model, "tokenizer.json")
    if vocabulary is None:
        raise UnreadableTokenizer(model, "it has no tokenizer.json")
    config = json.loads(_read(model, "tokenizer_config.json") or "{}")
    source = chat_template_of(config, _read(model, "chat_template.jinja"))
    template = compile_chat_template(source) if source is not None else None
    return PromptFormat(Path(model).name, vocabulary, template, special_tokens_of(config))


def _read(model: str, file: str) -> str | None:
    if Path(model).is_dir():
        path = Path(model) / file
        return path.read_text(encoding="utf-8") if path.is_file() else None
    try:
        return Path(hf_hub_download(model, file)).read_text(encoding="utf-8")
    except EntryNotFoundError:
        return None
    except (OSError, ValueError) as error:  # no network, no such repository, not a hub id
        raise UnreadableTokenizer(model, str(error)) from error
