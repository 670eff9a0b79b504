"""A request as the model's token ids and an answer as text: chat template and tokenizer, without torch.

The web process counts tokens here, so what it promises is what the worker prefills. A user's text stays text: a
literal `<eos>` in it is encoded letter by letter and never becomes the special token.
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
from inference.engine_errors import InferenceError

Turn = tuple[str, str]  # role, content

_NONCHARACTER = "\ufdd0"  # Unicode keeps it out of all interchange, so templates have none


class UnreadableTokenizer(InferenceError):
    """The model has no tokenizer.json that can be read; the operator must name another model."""

    def __init__(self, model: str, reason: str) -> None:
        self.model, self.reason = model, reason
        super().__init__(f"cannot read the tokenizer of {model}: {reason}")


class PromptFormat:
    """How one model is asked and how its answers are read."""

    def __init__(
        self, name: str, vocabulary: str, template: Template | None, special_tokens: dict[str, str] | None = None
    ) -> None:
        """`vocabulary` is the text of a tokenizer.json; `special_tokens` are what the template knows by name."""
        self.name = name
        self._template = template
        self._named_tokens = special_tokens or {}
        self._tokenizer = Tokenizer.from_str(vocabulary)
        self._literal = Tokenizer.from_str(vocabulary)
        self._literal.encode_special_tokens = True
        added = self._tokenizer.get_added_tokens_decoder().values()
        longest_first = sorted((token.content for token in added if token.special), key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")

    def encode(self, instructions: str, input: str) -> list[int]:
        """Token ids of the whole prompt: the model's chat template, or without one the two texts and a blank line."""
        joined = f"{instructions}\n\n{input}" if instructions else input
        if self._template is None:
            return list(self._literal.encode(joined).ids)
        if not instructions:
            return self._encode_chat(self._template, [("user", input)])
        try:
            return self._encode_chat(self._template, [("system", instructions), ("user", input)])
        except TemplateError:  # some templates refuse a system message, Gemma's for one
            return self._encode_chat(self._template, [("user", joined)])

    def encode_conversation(self, turns: Sequence[Turn]) -> list[int]:
        """Token ids of (role, content) turns; raises jinja2's TemplateError where the template refuses their order."""
        if self._template is None:
            transcript = "".join(f"{role}: {content}\n\n" for role, content in turns)
            return list(self._literal.encode(f"{transcript}assistant:").ids)
        return self._encode_chat(self._template, turns)

    def encode_request(self, instructions: str, input: str, turns: Sequence[Turn]) -> list[int]:
        """Token ids of a request's prompt: of its conversation if it has `turns`, else of its two texts."""
        return self.encode_conversation(turns) if turns else self.encode(instructions, input)

    def count(self, text: str) -> int:
        """Number of tokens of a text alone."""
        return len(self._literal.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an answer without special tokens; NUL, which databases refuse, becomes U+FFFD."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True)).replace("\0", "\ufffd")

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
        # The shield broke up the users' special tokens: every one that is still whole is the template's own.
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
    except (OSError, ValueError) as error:  # no network, no such repository, a name that is no hub id
        raise UnreadableTokenizer(model, str(error)) from error
