"""Splits an ended answer's text into thinking, text and calls; `growing_answer.py` does so while it grows.

The chat template says which tags enclose thinking. Unreadable calls stay text, so that nothing of an answer is lost.
Imports no torch.
"""

import re
from dataclasses import dataclass, field, replace

from inference.tool_calls import OfferedTools, ToolCall, made_call, read_tool_calls
from request_body import PLAIN, AnswerForm

# A closing tag of thinking, such as `</think>`, `[/THINK]` and `<|end_of_thought|>`.
CLOSING_TAG = re.compile(
    r"</[\w:]*(?:think|thought|reason)\w*>|\[/THINK\]|<\|END_THINKING\|>|<\|end_of_(?:thought|thinking)\|>"
    r"|\u25c1/think\u25b7",
    re.IGNORECASE,
)
# The header of a message of gpt-oss; `to=functions.NAME` in it makes the message a call. The pattern never backtracks.
HEADER = re.compile(
    r"\s*+(?:<\|start\|>assistant)?(\s*+to=[^<\s]++)?\s*+<\|channel\|>\s*+(\w++)([^<]*+)(?:<\|constrain\|>[^<]*+)?"
    r"<\|message\|>"
)
MESSAGE = "<|message|>"  # ends a header
CUT_HEADER = re.compile(  # the limit ended the answer within a header
    r"\s*+(?:<\|start\|>(?:assistant)?)?\s*+(?:<\|channel\|>(?:analysis|commentary|final)?\s*+(?:<\|constrain\|>json)?)?"
)
RECIPIENT = re.compile(r"to=functions\.(\S+)")
ENDS = ("<|end|>", "<|call|>", "<|return|>")
END = re.compile(r"<\|(?:end|call|return)\|>")
CHANNEL_MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", *ENDS)


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """The parts of an answer; thinking is its first `thinking_length` characters, tags included."""

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


def read_answer(answer: str, form: AnswerForm, tools: OfferedTools) -> ReadAnswer:
    """Returns an answer's parts."""
    read = _messages(answer, tools) if form.channels else _behind_thinking(answer, form)
    if not tools:
        return read
    text, calls = read_tool_calls(read.text, tools)
    return replace(read, text=text, calls=[*read.calls, *calls])


def _behind_thinking(answer: str, form: AnswerForm) -> ReadAnswer:
    if not form.closing:
        return ReadAnswer(text=answer)
    begun = answer.lstrip()
    if begun.startswith(form.opening):
        begun = begun.removeprefix(form.opening)
    elif not form.opened:
        return ReadAnswer(text=answer)
    thought, _, text = begun.partition(form.closing)
    return ReadAnswer(thought.strip(), text.lstrip(), thinking_length=len(answer) - len(text) if thought.strip() else 0)


def _messages(answer: str, tools: OfferedTools) -> ReadAnswer:
    """Reads the messages of gpt-oss: those before the one in the channel `final` are thinking, or calls."""
    thoughts, calls, at, thinking_length = list[str](), list[ToolCall](), 0, 0

    def read(text: str = "") -> ReadAnswer:
        return ReadAnswer("\n\n".join(one for one in thoughts if one), text, calls, thinking_length)

    while header := HEADER.match(answer, at):
        content = answer[header.end() :]
        end = END.search(content)
        if header[2] == "final":
            return read(content[: end.start()] + content[end.end() :] if end else content)
        addressed = f"{header[1] or ''} {header[3]}"
        if "to=" in addressed:
            recipient = RECIPIENT.search(addressed)
            if recipient is None or recipient[1] not in tools:
                break
            call = made_call(recipient[1], content[: end.start()] if end else content)
            if call is None:
                break
            calls.append(call)
        else:
            thoughts.append((content[: end.start()] if end else content).strip())
        at = header.end() + end.end() if end else len(answer)
        if thoughts and not calls:
            thinking_length = at
    rest = answer[at:]
    return read("" if CUT_HEADER.fullmatch(rest) else rest)
