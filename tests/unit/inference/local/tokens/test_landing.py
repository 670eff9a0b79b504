"""An answer in prose that asks for it ends with a sentence near its limit; its tokens are those of any other row."""

from dataclasses import replace

import pytest

from inference.answer_text import ends_sentence
from inference.engine_requests import DecodingRequest
from inference.local.batch_rows import BatchRow
from request_body import AnswerForm, Sampling


class Letters:
    """A tokenizer whose tokens are the characters of the text."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, token_ids))


def written(text: str, *, limit: int, landing: bool = True, form: AnswerForm | None = None) -> BatchRow:
    """The row whose model writes this text."""
    row = DecodingRequest("r", prompt_ids=(1,), limit=limit, sampling=Sampling(landing=landing))
    row = row if form is None else replace(row, answer_form=form)
    made = BatchRow(row, 0, 1000)
    for letter in text:
        if made.append(ord(letter), frozenset({0}), Letters()):
            break
    return made


TEXT = "One sentence here. And a second one. And more of it"


@pytest.mark.parametrize(
    ("limit", "end"),
    [
        (len("One sentence here."), "here."),  # just at the limit
        (22, "here. And"),  # the last tenth begins behind its only end
        (38, "one."),
        (len(TEXT), "of it"),
    ],
)
def test_the_first_sentence_that_ends_in_the_last_tenth_ends_the_answer(limit: int, end: str) -> None:
    landed, plain = written(TEXT, limit=limit), written(TEXT, limit=limit, landing=False)
    text = Letters().decode(landed.generated)
    assert text.endswith(end)
    assert landed.finish_reason == ("landed" if end.endswith(".") else "limit")
    assert (plain.finish_reason, plain.generated[: len(text)]) == ("limit", landed.generated)


def test_thinking_is_no_answer_that_could_end() -> None:
    form = AnswerForm(opening="<think>", closing="</think>")
    assert written("<think>Now then.", limit=16, form=form).finish_reason == "limit"
    assert written("<think>Now</think>Well then.", limit=28, form=form).finish_reason == "landed"
    opened = replace_opened(form)
    assert written("Now then.", limit=9, form=opened).finish_reason == "limit"
    assert written("Now</think>Well then.", limit=21, form=opened).finish_reason == "landed"


def replace_opened(form: AnswerForm) -> AnswerForm:
    return form.model_copy(update={"opened": True})


@pytest.mark.parametrize(
    "text", ["It ends.", "Does it?", 'He said "no."', "It (really) ends.)", "完了。", "It ends.\n", "So…"]
)
def test_a_mark_behind_a_word_ends_a_sentence(text: str) -> None:
    assert ends_sentence(Letters(), [*map(ord, text)])


@pytest.mark.parametrize(
    "text", ["It costs 3.", "1.", "e.g.", "See Dr.", "pears, etc.)", "a word", "so,", "and:", "", "."]
)
def test_a_number_a_letter_an_abbreviation_or_a_comma_ends_none(text: str) -> None:
    assert not ends_sentence(Letters(), [*map(ord, text)])
