"""Finds and compiles a model's chat template as transformers does, without importing transformers, which loads torch.

Templates are untrusted code, so they run in Jinja's immutable sandbox and are passed only strings.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference.engine_errors import UnreadableModel
from inference.model_directory.model_files import read_json, read_text
from inference.model_directory.model_tokenizer import SPECIAL_TOKENS

TEMPLATE_FOR_TOOLS = "additional_chat_templates/tool_use.jinja"  # where transformers stores a second template
CLOCK = "strftime_now"  # the function by which templates read the time
_OF_THE_CHAT = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message")


@dataclass(frozen=True, slots=True)
class ChatTemplates:
    """The sources of a model's templates, None where it has none, and the file that they are from."""

    chats: str | None
    with_tools: str | None  # Hermes has one for chats with tools
    file: str


def read_chat_templates(model: str) -> ChatTemplates:
    """Reads a model's templates; those in files of their own override those in the settings. Raises UnreadableModel."""
    older, settings = read_json(model, "chat_template.json"), read_json(model, "tokenizer_config.json")
    entry = (older | settings).get("chat_template")
    file = "tokenizer_config.json" if "chat_template" in settings else "chat_template.json"
    own_file = read_text(model, "chat_template.jinja", needed=entry is None)
    if own_file is not None:
        return ChatTemplates(own_file, read_text(model, TEMPLATE_FOR_TOOLS), "chat_template.jinja")
    if isinstance(entry, list):
        entry = {one["name"]: one["template"] for one in entry}
    if not isinstance(entry, dict):
        return ChatTemplates(entry, None, file)
    if entry and "default" not in entry:
        reason = f"its {file} has chat templates named {', '.join(map(str, entry))}, and none named default"
        raise UnreadableModel(model, reason)
    return ChatTemplates(entry.get("default"), entry.get("tool_use"), file)


def compile_chat_template(source: str) -> Template:
    """Compiles a template with the filters, functions and tags that templates on the hub use."""
    return _environment().from_string(source)


def variables_of(source: str) -> frozenset[str]:
    """Returns the variables that a template reads, `tools` among them if it takes definitions of tools."""
    return frozenset(meta.find_undeclared_variables(_environment().parse(source)))


def clients_variables(source: str) -> frozenset[str]:
    """Returns the variables that a client may set: all but the chat's own."""
    return variables_of(source) - {*SPECIAL_TOKENS, *_OF_THE_CHAT}


def system_as_user(messages: Sequence[Mapping[str, Any]], after: int = 0) -> list[dict[str, Any]]:
    """Returns the messages with each system message as the user's, joined with the user's messages beside it.

    The first `after` messages stay as they are.
    """
    merged: list[dict[str, Any]] = [dict(message) for message in messages[:after]]
    joins = False  # whether the message before is a system message
    for message in messages[after:]:
        system, users = message["role"] == "system", message["role"] in ("system", "user")
        if users and merged and merged[-1]["role"] == "user" and (system or joins):
            merged[-1]["content"] += f"\n\n{message['content']}"
        else:
            merged.append({**message, "role": "user"} if system else dict(message))
        joins = system
    return merged


def with_short_ids(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the messages with ids of calls of nine letters and digits, as the templates of Mistral demand them."""
    shortened = []
    for message in messages:
        changed = dict(message)
        if "tool_calls" in message:
            changed["tool_calls"] = [call | {"id": _short_id(call.get("id", ""))} for call in message["tool_calls"]]
        if "tool_call_id" in message:
            changed["tool_call_id"] = _short_id(message["tool_call_id"])
        shortened.append(changed)
    return shortened


def _short_id(id: str) -> str:
    return sha256(id.encode()).hexdigest()[:9]


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals[CLOCK] = clock()  # a variable of each rendering replaces it
    return environment


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; in a prompt its body is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012 (what jinja2 declares on its Extension)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Returns the body unchanged."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which would change the prompt.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def clock(at: str = "") -> Callable[[str], str]:
    """Returns the function that tells templates the time: the instant `at` in ISO 8601, or the present one for ""."""
    return lambda form: (datetime.fromisoformat(at) if at else datetime.now().astimezone()).strftime(form)
