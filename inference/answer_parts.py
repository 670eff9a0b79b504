"""Splits an answer's text into thinking, text and calls, also while the answer still grows.

Tags of thinking come from the chat template. Unreadable calls stay text, so that nothing of an answer is lost.
Imports no torch.
"""

import json
import re
from dataclasses import dataclass, field, replace

from inference.answer_text import held_back
from inference.tool_calls import OfferedTools, ToolCall, may_begin_calls, read_tool_calls
from request_body import PLAIN, AnswerForm

# A closing tag of thinking, such as `</think>`, `[/THINK]` and `<|end_of_thought|>`.
CLOSING_TAG = re.compile(
    r"</[\w:]*(?:think|thought|reason)\w*>|\[/THINK\]|<\|END_THINKING\|>|<\|end_of_(?:thought|thinking)\|>"
    r"|\u25c1/think\u25b7",
    re.IGNORECASE,
)
# The beginning of a message of gpt-oss; `to=functions.NAME` in it makes the message a call. Never backtracks.
HEADER = re.compile(
    r"\s*+(?:<\|start\|>assistant)?(\s*+to=[^<\s]++)?\s*+<\|channel\|>\s*+(\w++)([^<]*+)(?:<\|constrain\|>[^<]*+)?"
    r"<\|message\|>"
)
RECIPIENT = re.compile(r"to=functions\.(\S+)")
ENDS = ("<|end|>", "<|call|>", "<|return|>")
END = re.compile(r"<\|(?:end|call|return)\|>")
CHANNEL_MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", *ENDS)


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """The parts of an answer; while it grows, each part is the beginning of its final form.

    Thinking is the first `thinking_length` characters, tags included.
    """

    reasoning: str = ""
    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    thinking_length: int = 0


def find_answer_form(template: str) -> AnswerForm:
    """Returns the form of the answers that a chat template expects."""
    if "<|channel|>" in template and "<|message|>" in template:
        return AnswerForm(channels=True)
    found = CLOSING_TAG.search(template)
    if found is None:
        return PLAIN
    opening = found[0].replace("/", "").replace("END", "START").replace("end_of", "begin_of")
    return AnswerForm(opening=opening, closing=found[0])


def read_answer(answer: str, form: AnswerForm, tools: OfferedTools, *, ended: bool = True) -> ReadAnswer:
    """Returns an answer's parts; until it has `ended`, parts that may become others are held back."""
    read = _messages(answer, tools, ended) if form.channels else _behind_thinking(answer, form, ended)
    if not tools:
        return read
    if not ended:
        return replace(read, text=read.text[: may_begin_calls(read.text)])
    text, calls = read_tool_calls(read.text, tools)
    return replace(read, text=text, calls=[*read.calls, *calls])


def _behind_thinking(answer: str, form: AnswerForm, ended: bool) -> ReadAnswer:
    if not form.closing:
        return ReadAnswer(text=answer)
    begun = answer.lstrip()
    if not ended and form.opening.startswith(begun):
        return ReadAnswer()
    if begun.startswith(form.opening):
        begun = begun.removeprefix(form.opening)
    elif not form.opened:
        return ReadAnswer(text=answer)
    thought, closed, text = begun.partition(form.closing)
    if not closed and not ended:
        thought = thought[: len(thought) - held_back(thought, [form.closing])]
    return ReadAnswer(thought.strip(), text.lstrip(), thinking_length=len(answer) - len(text) if thought.strip() else 0)


def _messages(answer: str, tools: OfferedTools, ended: bool) -> ReadAnswer:
    """Reads the messages of gpt-oss: those before the one in the channel `final` are thinking, or calls."""
    thoughts, calls, at, thinking_length = list[str](), list[ToolCall](), 0, 0

    def read(text: str = "") -> ReadAnswer:
        return ReadAnswer("\n\n".join(one for one in thoughts if one), text, calls if ended else [], thinking_length)

    while header := HEADER.match(answer, at):
        content = answer[header.end() :]
        end = END.search(content)
        if header[2] == "final":
            if not ended:
                content = content[: len(content) - held_back(content, ENDS)]
            return read(content[: end.start()] + content[end.end() :] if end else content)
        addressed = f"{header[1] or ''} {header[3]}"
        if "to=" in addressed:
            recipient = RECIPIENT.search(addressed)
            call = _call(recipient[1], content[: end.start()] if end else content, tools) if recipient else None
            if call is None or not ended:
                break
            calls.append(call)
        else:
            thought = content[: end.start()] if end else content
            thoughts.append((thought if end or ended else thought[: len(thought) - held_back(thought, ENDS)]).strip())
        at = header.end() + end.end() if end else len(answer)
        if thoughts and not calls:
            thinking_length = at
    return read(answer[at:] if ended else "")


def _call(name: str, arguments: str, tools: OfferedTools) -> ToolCall | None:
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return ToolCall(name, arguments.strip()) if name in tools and isinstance(found, dict) else None
