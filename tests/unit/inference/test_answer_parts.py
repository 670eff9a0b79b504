"""What a model thought, what it says and what it calls, read from its text whole and while it grows."""

import json
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.answer_parts import find_answer_form, read_answer
from inference.tool_calls import ToolCall
from request_body import PLAIN, AnswerForm
from tests.unit.inference import published_templates as templates
from tests.unit.inference.tool_template import TOOL_TEMPLATE

THINK = AnswerForm(opening="<think>", closing="</think>")
OPENED = AnswerForm(opening="<think>", closing="</think>", opened=True)
CHANNELS = AnswerForm(channels=True)
TOOLS = {"weather": {"city"}, "time": set[str]()}
CALL = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
TIME = ToolCall("time", "{}")
ANALYSIS = "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant"
TO_TIME = "<|channel|>commentary to=functions.time <|constrain|>json<|message|>{}"


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (templates.QWEN3, THINK),
        (templates.DEEPSEEK_R1, THINK),
        (templates.MAGISTRAL, AnswerForm(opening="[THINK]", closing="[/THINK]")),
        (templates.COMMAND_A, AnswerForm(opening="<|START_THINKING|>", closing="<|END_THINKING|>")),
        (templates.SEED, AnswerForm(opening="<seed:think>", closing="</seed:think>")),
        (
            "<|begin_of_thought|> <|end_of_thought|>",
            AnswerForm(opening="<|begin_of_thought|>", closing="<|end_of_thought|>"),
        ),
        (templates.GPT_OSS, CHANNELS),
        (TOOL_TEMPLATE, PLAIN),
        (templates.TURNS, PLAIN),
    ],
)
def test_a_template_shows_the_tags_of_thinking(template, form):
    assert find_answer_form(template) == form


@pytest.mark.parametrize(
    ("form", "answer", "reasoning", "text", "calls"),
    [
        (THINK, "<think>\nI look.\n</think>\n\nIt rains.", "I look.", "It rains.", []),
        (THINK, "\n<think>I look.</think>It </think> rains.", "I look.", "It </think> rains.", []),
        (THINK, "<think>\n\n</think>\n\nIt rains.", "", "It rains.", []),
        (THINK, "It <think>rains</think>.", "", "It <think>rains</think>.", []),
        (THINK, "\n It rains.", "", "\n It rains.", []),
        (THINK, "<think>I lo", "I lo", "", []),
        (THINK, "<think>I look.</thi", "I look.</thi", "", []),
        (THINK, "<thi", "", "<thi", []),
        (THINK, f"<think>{CALL}</think>{CALL}", CALL, "", [TIME]),
        (THINK, f"<think>I look.</think>\n{CALL}", "I look.", "", [TIME]),
        (OPENED, "I look.</think>\n\nIt rains.", "I look.", "It rains.", []),
        (OPENED, "<think>\nI look.</think>It rains.", "I look.", "It rains.", []),
        (OPENED, "I look.", "I look.", "", []),
        (OPENED, "", "", "", []),
        (CHANNELS, f"{ANALYSIS}<|channel|>final<|message|>It rains.", "I look.", "It rains.", []),
        (CHANNELS, f"{ANALYSIS}<|channel|>final<|message|>It rains.<|return|>", "I look.", "It rains.", []),
        (CHANNELS, "<|channel|>final <|constrain|>json<|message|>{}", "", "{}", []),
        (CHANNELS, "<|channel|>analysis<|message|>I lo", "I lo", "", []),
        (CHANNELS, f"{ANALYSIS}{TO_TIME}<|call|>", "I look.", "", [TIME]),
        (CHANNELS, f"{ANALYSIS} to=functions.time<|channel|>commentary<|message|>{{}}", "I look.", "", [TIME]),
        (CHANNELS, f"{ANALYSIS}{TO_TIME}<|end|><|start|>assistant{TO_TIME}", "I look.", "", [TIME, TIME]),
        (CHANNELS, f"{ANALYSIS}{TO_TIME}, ", "I look.", f"<|start|>assistant{TO_TIME}, ", []),
        (
            CHANNELS,
            "<|channel|>commentary to=python<|message|>1",
            "",
            "<|channel|>commentary to=python<|message|>1",
            [],
        ),
        (CHANNELS, "It rains.", "", "It rains.", []),
        (CHANNELS, "<|channel|>analysis", "", "", []),
        (CHANNELS, ANALYSIS, "I look.", "", []),
        (CHANNELS, f"{ANALYSIS}<|channel|>final", "I look.", "", []),
        (PLAIN, "<think>I look.</think> It rains.", "", "<think>I look.</think> It rains.", []),
    ],
)
def test_an_answer_is_read_as_thinking_text_and_calls(form, answer, reasoning, text, calls):
    read = read_answer(answer, form, TOOLS)
    assert (read.reasoning, read.text, read.calls) == (reasoning, text, calls)


@pytest.mark.parametrize(
    ("form", "thinking", "rest"),
    [
        (THINK, "\n<think>\nI look.\n</think>", "\n\nIt rains."),
        (THINK, "<think>I look.</think>", CALL),
        (THINK, "<think>I lo", ""),
        (THINK, "", "<think>\n\n</think>\n\nIt rains."),
        (THINK, "", "It <think>rains</think>."),
        (OPENED, "I look.</think>", "\n\nIt rains."),
        (OPENED, "I lo", ""),
        (
            CHANNELS,
            ANALYSIS.removesuffix("<|start|>assistant"),
            "<|start|>assistant<|channel|>final<|message|>It rains.",
        ),
        (CHANNELS, ANALYSIS.removesuffix("<|start|>assistant"), f"<|start|>assistant{TO_TIME}<|call|>"),
        (CHANNELS, "<|channel|>analysis<|message|>I lo", ""),
        (CHANNELS, "", "<|channel|>final<|message|>It rains."),
        (CHANNELS, "", "It rains."),
        (PLAIN, "", "<think>I look.</think> It rains."),
    ],
)
@pytest.mark.parametrize("tools", [TOOLS, {}])
def test_thinking_has_a_length_in_the_answer(form, thinking, rest, tools):
    assert read_answer(thinking + rest, form, tools).thinking_length == len(thinking)


def test_without_tools_a_call_is_text():
    assert read_answer(f"<think>a</think>{CALL}", THINK, {}).text == CALL
    assert read_answer(TO_TIME, CHANNELS, {}).text == TO_TIME


TAGS = ["<think>", "</think>", "<thi", "nk>", "<tool_call>", "[TOOL_CALLS]", CALL, '{"name": "time"}', "{", "\n", "a"]
MESSAGES = [ANALYSIS, TO_TIME, "<|channel|>final<|message|>", "<|channel|>", "<|end|>", "<|start|>assistant"]
PIECES = st.lists(st.sampled_from([*TAGS, *MESSAGES]) | st.text(max_size=3), max_size=8).map("".join)


@given(PIECES, st.sampled_from([THINK, OPENED, CHANNELS]))
def test_no_word_of_an_answer_is_lost(answer, form):
    read = read_answer(answer + "WORD", form, TOOLS)
    shown = read.reasoning + read.text + json.dumps([call.arguments for call in read.calls])
    assert "WORD" in shown


@pytest.mark.parametrize(
    "answer",
    [
        "<tool_call>" + " " * 100_000,
        "<tool_call><function=time>" + "<parameter=a>" * 10_000,
        "<tool_call><function=time>" * 5_000,
        "[TOOL_CALLS]" + "a" * 100_000,
        "<tool_call>time" + "<arg_key>a</arg_key><arg_value>" * 5_000,
        "<tool_call>time<arg_key>" * 5_000,
        "<｜tool▁calls▁begin｜>" + "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" * 5_000,
        "<|tool_calls_section_begin|><|tool_call_begin|>" + "functions." * 10_000,
        " " * 100_000 + "<|channel|>",
        "<|channel|>a" * 10_000,
    ],
)
def test_reading_takes_a_time_that_grows_with_the_length_of_the_answer(answer):
    began = process_time()
    for form in (THINK, CHANNELS):
        read_answer(answer, form, TOOLS)
    assert process_time() - began < 1  # seconds of CPU; a quadratic reading takes minutes
