"""Reads calls of tools in an answer's text, in the formats that chat templates teach; makes formats that force a call.

Hermes, Qwen and SmolLM2 write `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, Qwen3-Coder
`<tool_call><function=NAME><parameter=KEY>VALUE`, GLM `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE`; DeepSeek
and Kimi a section of calls, each with a name and an object between special tokens; Mistral `[TOOL_CALLS]` with a list
of such objects or with `NAME[ARGS]{…}`; Granite and Phi `<|tool_call|>`; Llama 3 the object as the whole answer
(`parameters` for `arguments`), perhaps behind `<|python_tag|>`, several with semicolons. The calls of gpt-oss are
messages, which `inference/answer_parts.py` reads. A call that cannot be read stays text. Imports no torch.
"""

import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic_core import from_json

from inference.answer_text import held_back, storable
from inference.client_schemas import close_objects
from inference.engine_requests import JsonFormat
from request_body import CUSTOM_INPUT, RequestBody, StoredTool

DEEPSEEK, KIMI = "<｜tool▁calls▁begin｜>", "<|tool_calls_section_begin|>"
MARKS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<|tool_call|>", DEEPSEEK, KIMI)  # they precede calls
# Further marks within calls: decoding keeps them although a tokenizer may have them as special tokens.
FURTHER_MARKS = (
    *(
        "</tool_call>",
        "<|/tool_call|>",
        "[ARGS]",
        "[CALL_ID]",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ),
    *("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"),
)
CLOSING = re.compile(
    r"\s*+(?:</tool_call>|<\|/tool_call\|>|<｜tool▁calls▁end｜>|<\|tool_calls_section_end\|>|(?=\[TOOL_CALLS\])|$)"
)
BETWEEN = re.compile(r"\s*+(?:[;,]\s*+)?(?=[{\[])")
# Pairs of patterns: for the text in front of an object of arguments, with the function's name, and for that behind it.
NAMED = (
    (re.compile(r"\s*+([\w.-]++)(?:\[CALL_ID\]\w++)?(?:\[ARGS\])?\s*+(?={)"), re.compile("")),  # Mistral
    (
        re.compile(
            r"\s*+<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?([\w.-]++)\s*+(?:<｜tool▁sep｜>|```json)\s*+(?={)"
        ),
        re.compile(r"\s*+(?:```)?\s*+(?:<｜tool▁call▁end｜>)?"),
    ),
    (
        re.compile(
            r"\s*+<\|tool_call_begin\|>\s*+(?:functions\.)?([\w.-]++)(?::\d++)?\s*+"
            r"<\|tool_call_argument_begin\|>\s*+(?={)"
        ),
        re.compile(r"\s*+(?:<\|tool_call_end\|>)?"),
    ),
)
FUNCTION = re.compile(r"\s*+<function=([^>\s]++)>")
PARAMETER = re.compile(r"\s*+<parameter=([^>\s]++)>\n?")
FUNCTION_END, PARAMETER_END = "</function>", "</parameter>"
KEYED = re.compile(r"\s*+([\w.-]++)\s*+(?=<arg_key>|</tool_call>)")
KEY = re.compile(r"\s*+<arg_key>([^<]++)</arg_key>\s*+<arg_value>")
VALUE_END = "</arg_value>"
MOST_CALLS = 128  # the most calls in one answer, as many as OpenAI allows tools
# Matches a forced call that the limit may have cut: its name and its arguments, each perhaps without its end.
CUT_CALL = re.compile(r'\s*+\{(?:\s*+"name"\s*+:\s*+"([^"]*+)(?:"\s*+,\s*+"arguments"\s*+:\s*+(\{.*)?)?)?', re.DOTALL)


def _finite(digits: str) -> float:
    """Returns the number, or the largest one of its sign, because JSON has no infinity."""
    return max(-sys.float_info.max, min(sys.float_info.max, float(digits)))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")


DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant)

# The tools that may be called, each with the names of its parameters that are texts.
OfferedTools = Mapping[str, Collection[str]]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; `arguments` is a JSON object as text, or its beginning if the limit has cut the answer."""

    name: str
    arguments: str
    custom: bool = False  # it calls a custom tool

    @property
    def input(self) -> str:
        """Returns the text with which it calls a custom tool; if it has none, its arguments."""
        try:
            found = from_json(self.arguments, allow_partial="trailing-strings")
        except ValueError:
            return self.arguments
        text = found.get(CUSTOM_INPUT) if isinstance(found, dict) else None
        return text if isinstance(text, str) else self.arguments


def made_call(name: str, arguments: Any) -> ToolCall | None:
    """Returns a call whose arguments, given as an object or as JSON, are valid JSON; None for anything else."""
    try:
        found = DECODER.decode(arguments or "{}") if isinstance(arguments, str) else arguments
        if isinstance(found, Mapping):
            return ToolCall(name, storable(json.dumps(found, ensure_ascii=False)))
    except (ValueError, RecursionError):
        pass
    return None


def text_parameters(tools: Sequence[StoredTool]) -> OfferedTools:
    """Returns the tools by name, each with its parameters whose values are texts."""
    return {tool.name: _texts(json.loads(tool.parameters or "{}").get("properties")) for tool in tools}


def _texts(properties: Any) -> set[str]:
    named = properties.items() if isinstance(properties, Mapping) else ()
    return {name for name, schema in named if isinstance(schema, Mapping) and schema.get("type") == "string"}


def read_tool_calls(text: str, tools: OfferedTools) -> tuple[str, list[ToolCall]]:
    """Returns an answer's text without its calls of these tools, and the calls; damaged and other calls stay text."""
    whole = _values(text.strip(), 0, tools)
    if whole is not None and whole[1] == len(text.strip()):
        return ("", whole[0]) if len(whole[0]) <= MOST_CALLS else (text, [])
    beside, calls, at = "", list[ToolCall](), 0
    for _ in range(MOST_CALLS + 1):
        start, begin = _next_mark(text, at)
        found = _calls(text, begin, tools)
        if found is None:
            beside += text[at:begin]
            at = begin
        else:
            beside += text[at:start]
            calls += found[0]
            at = found[1]
    beside += text[at:]
    if not calls or len(calls) > MOST_CALLS:
        return text, []
    return beside if beside.strip() else "", calls


def may_begin_calls(text: str, spoken: bool = False) -> tuple[int, bool]:
    """Returns how many characters of an incomplete answer are no calls, and whether calls begin behind them for sure.

    `text` is the answer, or, if it has `spoken` already, what was not shown yet.
    """
    mark = _next_mark(text, 0)[0]
    place = min(mark, len(text) - held_back(text, MARKS))
    before = text[:place].lstrip()
    if not spoken and (not before or before[0] in "{["):
        return 0, bool(before) or place == mark < len(text)
    return place, place == mark < len(text)


def _next_mark(text: str, at: int) -> tuple[int, int]:
    """Returns where the next mark begins and ends; the end of the text if there is none."""
    found = [(place, place + len(mark)) for mark in MARKS if (place := text.find(mark, at)) >= 0]
    return min(found, default=(len(text), len(text)))


def _calls(text: str, at: int, tools: OfferedTools) -> tuple[list[ToolCall], int] | None:
    """Returns the calls behind a mark that ends at `at`, and where they end, or None if they cannot be read."""
    readers = (_values, _named, _functions, _keyed)
    found = next((found for read in readers if (found := read(text, at, tools))), None)
    closing = found and CLOSING.match(text, found[1])
    return (found[0], closing.end()) if found and closing else None


def _values(text: str, at: int, tools: OfferedTools) -> tuple[list[ToolCall], int] | None:
    """Reads calls that are JSON objects, or lists of them."""
    calls: list[ToolCall] = []
    while begin := BETWEEN.match(text, at):
        try:
            found, at = DECODER.raw_decode(text, begin.end())
        except (ValueError, RecursionError):
            return None
        for one in found if isinstance(found, list) else [found]:
            call = _call(one, tools)
            if call is None:
                return None
            calls.append(call)
    return (calls, at) if calls else None


def _call(value: Any, tools: OfferedTools) -> ToolCall | None:
    name = value.get("name") if isinstance(value, Mapping) else None
    if not isinstance(name, str) or name not in tools:
        return None
    return made_call(name, value.get("arguments", value.get("parameters", {})))


def _named(text: str, at: int, tools: OfferedTools) -> tuple[list[ToolCall], int] | None:
    """Reads calls that are a name and an object of arguments: Mistral's newer models, DeepSeek and Kimi write them."""
    calls: list[ToolCall] = []
    for begin, end in NAMED:
        while named := begin.match(text, at):
            if named[1] not in tools:
                return None
            try:
                arguments, at = DECODER.raw_decode(text, named.end())
            except (ValueError, RecursionError):
                return None
            call = made_call(named[1], arguments)
            if call is None:
                return None
            calls.append(call)
            ended = end.match(text, at)
            at = ended.end() if ended else at
    return (calls, at) if calls else None


def _functions(text: str, at: int, tools: OfferedTools) -> tuple[list[ToolCall], int] | None:
    """Reads calls in the tags of Qwen3-Coder; values of text parameters are kept as they are, others are JSON."""
    calls: list[ToolCall] = []
    while function := FUNCTION.match(text, at):
        name, at, arguments = function[1], function.end(), dict[str, Any]()
        if name not in tools:
            return None
        while parameter := PARAMETER.match(text, at):
            end = text.find(PARAMETER_END, parameter.end())
            if end < 0:
                return None
            value = text[parameter.end() : end].removesuffix("\n")
            arguments[parameter[1]] = value if parameter[1] in tools[name] else _json_or_text(value)
            at = end + len(PARAMETER_END)
        end = text.find(FUNCTION_END, at)
        call = made_call(name, arguments)
        if call is None or end < 0 or text[at:end].strip():
            return None
        calls.append(call)
        at = end + len(FUNCTION_END)
    return (calls, at) if calls else None


def _keyed(text: str, at: int, tools: OfferedTools) -> tuple[list[ToolCall], int] | None:
    """Reads a call in the tags of GLM; values of text parameters are kept as they are, others are JSON."""
    named = KEYED.match(text, at)
    if named is None or named[1] not in tools:
        return None
    at, arguments = named.end(), dict[str, Any]()
    while key := KEY.match(text, at):
        end = text.find(VALUE_END, key.end())
        if end < 0:
            return None
        name, value = key[1].strip(), text[key.end() : end]
        arguments[name] = value if name in tools[named[1]] else _json_or_text(value)
        at = end + len(VALUE_END)
    call = made_call(named[1], arguments)
    return ([call], at) if call else None


def _json_or_text(value: str) -> Any:
    try:
        return DECODER.decode(value)
    except (ValueError, RecursionError):
        return value


def cut_call(text: str, names: Sequence[str]) -> ToolCall | None:
    """Returns the begun part of a forced call of one of these functions, None if the answer has not begun one."""
    begun = CUT_CALL.match(text)
    if begun is None:
        return None
    return ToolCall(names[0] if len(names) == 1 else begun[1] or "", begun[2] or "")


def required_format(body: RequestBody) -> JsonFormat | None:
    """Returns the format that an answer must have: that of a required call, or the one that the client asked for."""
    if body.tool_choice.mode == "required":
        schema = forced_call_schema(body.tools, body.tool_choice.function, literal=body.literal_schemas)
        return JsonFormat(json.dumps(schema), answer_form=body.answer_form)
    if body.format is None:
        return None
    asked = body.format.schema_ and json.dumps(_read_schema(body.format.schema_, body.literal_schemas))
    return JsonFormat(asked, body.format.pattern, body.answer_form, body.format.grammar)


def _read_schema(text: str, literal: bool) -> Any:
    """Returns the schema; its objects are closed unless it is to be read literally."""
    schema = json.loads(text)
    if not literal:
        close_objects(schema)
    return schema


def _arguments_schema(tool: StoredTool, literal: bool) -> dict[str, Any]:
    """Returns the schema of a function's arguments; a function without parameters takes no arguments."""
    schema: dict[str, Any] = _read_schema(tool.parameters or "{}", literal)
    if not schema.get("properties") and schema.keys() <= {"type", "properties", "required", "title", "description"}:
        schema["additionalProperties"] = False
    return schema


def forced_call_schema(tools: Sequence[StoredTool], name: str | None, *, literal: bool = False) -> dict[str, Any]:
    """Returns a JSON Schema of one call of the tool with this name, or of any of these tools if `name` is None."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.name},
                # an id, so that the schema's references resolve to its own definitions
                "arguments": {"$id": f"magnus:tool:{number}", "type": "object", **_arguments_schema(tool, literal)},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for number, tool in enumerate(tools)
        if name in (None, tool.name)
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}
