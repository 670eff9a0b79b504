"""Reads calls of tools in an answer's text, in the formats that chat templates teach; makes formats that force a call.

Hermes, Qwen and SmolLM2 write `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, each call or a list of them
between tags; Llama 3 and Mistral write the object, or a list, as the whole answer (`parameters` for `arguments`).
Imports no torch.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference.sequences import JsonFormat
from request_body import RequestBody, StoredTool

OPENING = "<tool_call>"
TAGGED = re.compile(rf"{OPENING}(.*?)(?:</tool_call>|$)", re.DOTALL)
MARKS = ("[TOOL_CALLS]", "<|python_tag|>", "<|tool_call|>")  # in front of calls that are the whole answer
MOST_CALLS = 128  # calls in one answer; the same number as OpenAI's bound on tools


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; `arguments` is a JSON object as text."""

    name: str
    arguments: str


def read_tool_calls(text: str, names: Collection[str]) -> tuple[str, list[ToolCall]]:
    """Returns an answer's text beside its calls, and its calls of tools with these names.

    A text without calls, or with a call of another tool, is returned as it is.
    """
    found = TAGGED.findall(text)
    if found:
        calls = [call for part in found for call in _calls(part)]
        rest = TAGGED.sub("", text)
        rest = rest if rest.strip() else ""
    else:
        whole = text.strip()
        for mark in MARKS:
            whole = whole.removeprefix(mark).strip()
        calls, rest = _calls(whole), ""
    if not calls or len(calls) > MOST_CALLS or any(call.name not in names for call in calls):
        return text, []
    return rest, calls


def may_begin_calls(text: str) -> int | None:
    """Returns the position in an incomplete answer at which calls begin or may begin; None if there is none."""
    start = text.find(OPENING)
    if start >= 0:
        return start
    begun = text.lstrip()
    if not begun or begun[0] in "{[" or any(mark.startswith(begun[: len(mark)]) for mark in MARKS):
        return 0
    for length in range(min(len(OPENING) - 1, len(text)), 0, -1):
        if text.endswith(OPENING[:length]):
            return len(text) - length
    return None


def _calls(text: str) -> list[ToolCall]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    calls = []
    for one in found if isinstance(found, list) else [found]:
        if not isinstance(one, Mapping) or not isinstance(one.get("name"), str):
            return []
        arguments = one.get("arguments", one.get("parameters", {}))
        if isinstance(arguments, str):
            calls.append(ToolCall(one["name"], arguments))
        elif isinstance(arguments, Mapping):
            calls.append(ToolCall(one["name"], json.dumps(arguments, ensure_ascii=False)))
        else:
            return []
    return calls


def required_format(body: RequestBody) -> JsonFormat | None:
    """Returns the format that an answer must have: that of a required call, or the one that the client asked for."""
    if body.tool_choice.mode == "required":
        return JsonFormat(json.dumps(forced_call_schema(body.tools, body.tool_choice.function)))
    if body.format is None:
        return None
    return JsonFormat(body.format.schema_, body.format.pattern)


def _arguments_schema(tool: StoredTool) -> dict[str, Any]:
    """Returns the schema of a function's arguments; a function without parameters gets none."""
    schema: dict[str, Any] = json.loads(tool.parameters or "{}")
    if not schema.get("properties") and schema.keys() <= {"type", "properties", "required", "title", "description"}:
        schema["additionalProperties"] = False
    return schema


def forced_call_schema(tools: Sequence[StoredTool], name: str | None) -> dict[str, Any]:
    """Returns a JSON Schema of one call of the tool with this name, or of any of these tools if `name` is None."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.name},
                # its own id, so that its references still resolve to its own definitions
                "arguments": {"$id": f"magnus:tool:{number}", "type": "object", **_arguments_schema(tool)},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for number, tool in enumerate(tools)
        if name in (None, tool.name)
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}
