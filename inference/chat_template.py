"""Finds and compiles a model's chat template as transformers does, without importing transformers, which loads torch.

Templates are untrusted code, so they run in Jinja's immutable sandbox and are passed only strings.
"""

import json
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


def find_chat_template(tokenizer_config: dict[str, Any], template_file: str | None) -> str | None:
    """Returns the template's source, or None if the model has no template.

    A template file overrides the config's entry; of several named templates `default` is taken.
    """
    if template_file is not None:
        return template_file
    source = tokenizer_config.get("chat_template")
    if isinstance(source, list):
        return next((entry["template"] for entry in source if entry["name"] == "default"), None)
    return source


def compile_chat_template(source: str) -> Template:
    """Compiles a template with the filters, functions and tags that templates on the hub use."""
    return _environment().from_string(source)


def takes_tools(source: str) -> bool:
    """Returns whether a template reads the definitions of tools."""
    return "tools" in meta.find_undeclared_variables(_environment().parse(source))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
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


def _strftime_now(format: str) -> str:
    return datetime.now().astimezone().strftime(format)
