"""What is shown of an answer while it grows."""

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.answer_parts import read_answer
from inference.growing_answer import GrowingAnswer
from inference.tool_calls import OfferedTools
from request_body import PLAIN, AnswerForm
from tests.unit.inference.test_answer_parts import ANALYSIS, CALL, CHANNELS, OPENED, THINK, TO_TIME, TOOLS

TAGS = ["<think>", "</think>", "<thi", "nk>", "<tool_call>", "[TOOL_CALLS]", CALL, '{"name": "time"}', "{", "\n", "a"]
MESSAGES = [ANALYSIS, TO_TIME, "<|channel|>final<|message|>", "<|channel|>", "<|end|>", "<|start|>assistant"]
ANSWERS = st.lists(st.lists(st.sampled_from([*TAGS, *MESSAGES]) | st.text(max_size=3), max_size=4), max_size=4)
FORMS = st.sampled_from([THINK, OPENED, CHANNELS, PLAIN])


def shown(pieces: list[str], form: AnswerForm, tools: OfferedTools) -> tuple[str, str]:
    growing, thought, said = GrowingAnswer(form, tools), "", ""
    for piece in pieces:
        new = growing.add(piece)
        thought, said = thought + new[0], said + new[1]
    return thought, said


@given(ANSWERS, FORMS, st.sampled_from([{}, TOOLS]))
def test_what_is_shown_begins_the_parts_of_the_whole_however_it_comes(
    parts: list[list[str]], form: AnswerForm, tools: OfferedTools
) -> None:
    pieces = ["".join(part) for part in parts]
    answer = "".join(pieces)
    thought, said = shown(pieces, form, tools)
    whole = read_answer(answer, form, tools)
    assert whole.reasoning.startswith(thought)
    assert whole.text.startswith(said)
    assert not said or thought == whole.reasoning
    assert shown([*answer], form, tools) == (thought, said)


@pytest.mark.parametrize(
    ("form", "answer", "thought", "said"),
    [
        (THINK, " <think>\nI look.\n</think>\n\nIt rains.", "I look.", "It rains."),
        (THINK, "It <think>rains.", "", "It <think>rains."),
        (OPENED, "I look.\n </think> It rains. </thi", "I look.", "It rains. </thi"),
        (CHANNELS, f"{ANALYSIS}{ANALYSIS}<|channel|>final<|message|>It rains.<|e", "I look.\n\nI look.", "It rains."),
        (CHANNELS, f"{ANALYSIS}{TO_TIME}", "I look.", ""),
        (CHANNELS, "It rains.<|channel|>final<|message|>It", "", ""),
        (PLAIN, "It rains. <tool_c", "", "It rains. "),
        (PLAIN, "It rains. <tool_call>", "", "It rains. "),
        (PLAIN, "It rains. <tool_cell>", "", "It rains. <tool_cell>"),
        (PLAIN, ' {"name": "time"}', "", ""),
    ],
)
def test_all_is_shown_that_can_become_nothing_else(form: AnswerForm, answer: str, thought: str, said: str) -> None:
    assert shown([answer], form, TOOLS) == shown([*answer], form, TOOLS) == (thought, said)


@pytest.mark.parametrize("begin", ["", "<think>", "<think>a</think>", "a", "a<tool_call>", "{", MESSAGES[2]])
def test_a_piece_costs_the_same_however_long_the_answer_is_already(begin: str) -> None:
    began = process_time()
    for form in (THINK, CHANNELS, PLAIN):
        shown([begin, *["word " * 20] * 10_000], form, TOOLS)
    assert process_time() - began < 4  # seconds of CPU; reading the whole again for each piece takes ten times as long
