"""Ends a row's thinking once it has taken its budget of tokens, with the mark by which the chat template ends it.

A model that would end its answer while it thinks ends its thinking instead, and goes on if it would end right behind
it. What is forced follows from the row's tokens alone, so that a row goes on alike wherever and however it is resumed.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer

from inference.answer_text import UNDECODED
from request_body import PLAIN, AnswerForm

# An answer that has not begun to think after this many tokens, which may be blanks, does not think. Not tuned
MOST_LEADING_TOKENS = 32
MOST_BLANKS = 8  # with so many blanks behind its thinking an answer may end. Not tuned
ANCHOR = "."  # a mark is encoded behind it: some tokenizers put a blank in front of a text
# of gpt-oss, what begins its thinking, what ends it, and what also begins the message with its text
CHANNELS = ("<|channel|>analysis<|message|>", "<|end|>", "<|end|><|start|>assistant<|channel|>final<|message|>")


class ThinkingBudget:
    """The budget of one row: its thinking has at most `most` tokens behind its opening tag."""

    def __init__(self, form: AnswerForm, most: int, tokenizer: Tokenizer) -> None:
        """`form` is not PLAIN."""
        self._opening, self._closing, mark = CHANNELS if form.channels else (form.opening, form.closing, form.closing)
        self._most, self._tokenizer = most, tokenizer
        known = tokenizer.token_to_id(mark)  # some tokenizers read even this mark in a text as plain text
        self._mark = _continuing_ids(mark, tokenizer) if known is None else [known]
        self._whole_mark = mark
        # the number of tokens in front of the thinking, None until the opening tag has come
        self._begin: int | None = 0 if form.opened else None
        self._looked = 0  # `will_end` found no closing tag in this many tokens of the answer
        self._spent = False  # the thinking was still open at the end of its budget
        self._over = False  # the thinking has ended, or there is none

    def forced_token(self, generated: Sequence[int]) -> int | None:
        """Returns the next token of an answer whose tokens so far are `generated`, or None if the model chooses it."""
        if self._over:
            return None
        self._look_for_opening(generated)
        if self._begin is None or len(generated) < self._begin + self._most:
            return None
        place = len(generated) - self._begin - self._most
        if not self._spent:
            thought = self._text(generated[self._begin : self._begin + self._most])
            self._spent, self._over = self._closing not in thought, self._closing in thought
        # where the answer is held to a format, its end may have been near, and the mark may have begun before
        self._over = self._over or place >= len(self._mark) or self._whole_mark in self._text(generated[self._begin :])
        return None if self._over else self._mark[place]

    def instead_of_end(self, generated: Sequence[int], limit: int) -> int | None:
        """Returns the token with which the thinking ends here, where the model would end the answer.

        None if `generated` does not think, or if its limit leaves no room for an answer behind the mark.
        """
        if self._over or self._begin is None or len(generated) + len(self._mark) >= limit:
            return None
        self._over = self._closing in self._text(generated[self._begin :])
        if self._over:
            return None
        self._most = len(generated) - self._begin
        return self._mark[0]

    def is_all(self, generated: Sequence[int]) -> bool:
        """Returns whether the answer has nothing behind its thinking yet, or a few blanks."""
        if self._begin is None:
            return False
        _, mark, answer = self._text(generated[self._begin :]).partition(self._whole_mark)
        return bool(mark) and len(answer) < MOST_BLANKS and not answer.strip()

    def resume(self, generated: Sequence[int]) -> None:
        """Goes on with a mark that was begun before the budget's end, and of which `generated` ends with a part."""
        self._look_for_opening(generated)
        for part in range(len(self._mark) - 1, 0, -1):
            before = len(generated) - part - (self._begin or 0)
            if self._begin is not None and 0 <= before < self._most and [*generated[-part:]] == self._mark[:part]:
                self._most = before

    def will_end(self, generated: Sequence[int], limit: int) -> bool:
        """Returns whether an answer that thinks now, and has at most `limit` tokens, will have its thinking ended."""
        if self._over or self._begin is None or self._begin + self._most >= limit:
            return False
        since = max(self._begin, self._looked - MOST_LEADING_TOKENS)  # the tag may have begun before
        self._looked, self._over = len(generated), self._closing in self._text(generated[since:])
        return not self._over

    def _look_for_opening(self, generated: Sequence[int]) -> None:
        if self._begin is not None:
            return
        begun = generated[:MOST_LEADING_TOKENS]
        text = self._text(begun).lstrip()
        if text.startswith(self._opening):
            counts = range(len(begun) + 1)
            self._begin = next(n for n in counts if self._text(begun[:n]).lstrip().startswith(self._opening))
        else:
            self._over = len(begun) == MOST_LEADING_TOKENS or not self._opening.startswith(text)

    def _text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False).rstrip(UNDECODED)


def _continuing_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    """Returns the tokens of a text that continues another one."""
    anchor, whole = (tokenizer.encode(one, add_special_tokens=False).ids for one in (ANCHOR, ANCHOR + text))
    if whole[: len(anchor)] != anchor:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)
    return list(whole[len(anchor) :])


def thinking_budget(form: AnswerForm, most: object, tokenizer: object) -> ThinkingBudget | None:
    """Returns the budget of a row, or None without one, and for a model that does not think or has no tokenizer."""
    if not isinstance(most, int) or form == PLAIN or not isinstance(tokenizer, Tokenizer):
        return None
    return ThinkingBudget(form, most, tokenizer)
