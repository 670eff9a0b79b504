"""Splits an answer into thinking and text while it grows, and reads each character once; imports no torch.

`read_answer` reads the ended answer and finds its calls, of which nothing is shown before.
"""

import re
from collections.abc import Callable
from typing import Optional

from inference.answer_parts import END, ENDS, HEADER, MESSAGE
from inference.answer_text import held_back
from inference.tool_calls import OfferedTools, may_begin_calls
from request_body import AnswerForm

State = Callable[[], Optional["State"]]  # reads on, and returns the next state once it has come to its end


class GrowingAnswer:
    """An answer that grows by `add`; characters that may be the beginning of a tag or a call are held back."""

    def __init__(self, form: AnswerForm, tools: OfferedTools) -> None:
        self._form, self._tools = form, tools
        self._ends = list(ENDS) if form.channels else [form.closing]  # tags that end a thought
        self._end = END if form.channels else re.compile(re.escape(form.closing))
        self._state: State = self._header if form.channels else self._opening if form.closing else self._all
        self._rest = ""  # what was not read yet
        self._looked = 0  # no MESSAGE begins in this many first characters of `_rest`
        self._lead = ""  # the characters in front of the next thought
        self._in_thought = False  # a part of the present thought was shown
        self._held = ""  # text that may become calls
        self._spoken = self._calls = False  # some text was shown; calls have begun, so that no more text is shown
        self._thought = self._said = ""  # what the present call of `add` returns

    def add(self, piece: str) -> tuple[str, str]:
        """Adds the next piece of the answer; returns the thinking and the text that can be shown now."""
        self._rest += piece
        self._thought = self._said = ""
        while (following := self._state()) is not None:
            self._state = following
        return self._thought, self._said

    def _opening(self) -> State | None:
        begun = self._rest.lstrip()
        if self._form.opening.startswith(begun):
            return None
        if not self._form.opened and not begun.startswith(self._form.opening):
            return self._all
        self._rest = begun.removeprefix(self._form.opening)
        return self._thinking

    def _thinking(self) -> State | None:
        end = self._end.search(self._rest)
        if end is None:
            self._think(self._rest[: len(self._rest) - held_back(self._rest, self._ends)])
            return None
        behind = self._rest[end.end() :]
        self._think(self._rest[: end.start()])
        self._rest, self._looked, self._in_thought = behind, 0, False
        return self._header if self._form.channels else self._blanks

    def _blanks(self) -> State | None:
        self._rest = self._rest.lstrip()
        return self._all if self._rest else None

    def _header(self) -> State | None:
        if self._rest.find(MESSAGE, self._looked) < 0:
            self._looked = max(0, len(self._rest) - len(MESSAGE))
            return None
        header = HEADER.match(self._rest)
        if header is None:
            return self._nothing
        self._rest = self._rest[header.end() :]
        if header[2] == "final":
            return self._final
        return self._nothing if "to=" in f"{header[1] or ''} {header[3]}" else self._thinking

    def _final(self) -> State | None:
        end = END.search(self._rest)
        if end is not None:
            self._rest = self._rest[: end.start()] + self._rest[end.end() :]
            return self._all
        said = self._rest[: len(self._rest) - held_back(self._rest, ENDS)]
        self._rest = self._rest[len(said) :]
        self._say(said)
        return None

    def _all(self) -> None:
        """The rest of the answer is text."""
        said, self._rest = self._rest, ""
        self._say(said)

    def _nothing(self) -> None:
        """The rest of the answer is a call, or unreadable: it is shown once it has ended."""
        self._rest = ""

    def _think(self, thought: str) -> None:
        """Shows a thought, which begins `_rest`, without the blanks around it."""
        shown = thought.rstrip()
        self._rest = self._rest[len(shown) :]
        if not self._in_thought:
            shown = shown.lstrip()
        if shown:
            self._thought += shown if self._in_thought else self._lead + shown
            self._lead, self._in_thought = "\n\n", True

    def _say(self, text: str) -> None:
        """Shows text up to where calls begin or may begin."""
        if self._calls or not text:
            return
        held, shown = self._held + text, len(self._held + text)
        if self._tools:
            shown, self._calls = may_begin_calls(held, self._spoken)
        self._said, self._held = self._said + held[:shown], held[shown:]
        self._spoken = self._spoken or shown > 0
