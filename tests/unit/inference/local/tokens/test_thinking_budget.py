"""Thinking that has taken its budget ends with the template's mark, whatever else happens to its row."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from inference.engine_requests import DecodingRequest, JsonFormat
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.tokens.thinking_budget import MOST_LEADING_TOKENS, ThinkingBudget, thinking_budget
from request_body import GREEDY, PLAIN, AnswerForm, Sampling
from settings import BUNDLED_MODEL
from tests.unit.inference.foreseen_tokens import Foreseen
from tests.unit.inference.local.test_engine_guesses import ends
from tests.unit.inference.tiny_models import AMPLE, drain, known

BYTES = Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))
THINKS = AnswerForm(opening="<think>", closing="</think>")
OPENED = THINKS.model_copy(update={"opened": True})
SPECIAL = AnswerForm(opening="<user>", closing="<assistant>", opened=True)  # special tokens of this tokenizer
CHANNELS = AnswerForm(channels=True)
CHANNELS_MARK = "<|end|><|start|>assistant<|channel|>final<|message|>"


def ids(text: str) -> list[int]:
    return BYTES.encode(f".{text}", add_special_tokens=False).ids[2:]  # behind a blank and the point


def text_of(tokens: list[int]) -> str:
    return BYTES.decode(tokens, skip_special_tokens=False)


def followed(budget: ThinkingBudget, wanted: list[int], limit: int = 80) -> list[int]:
    """The tokens of a model that wants to say these, where it may choose."""
    generated: list[int] = []
    while wanted and len(generated) < limit:
        forced = budget.forced_token(generated)
        generated.append(wanted.pop(0) if forced is None else forced)
    return generated


@pytest.mark.parametrize(
    ("form", "most", "wanted", "said"),
    [
        (THINKS, 4, "<think>cat dog hen</think>It rains", "<think>{thought}</think>"),
        (THINKS, 0, "<think>cat", "<think></think>"),
        (OPENED, 3, "cat dog hen", "{thought}</think>"),
        (OPENED, 0, "cat", "</think>"),
        (SPECIAL, 2, "cat dog hen", "{thought}<assistant>"),
        (
            CHANNELS,
            4,
            "<|channel|>analysis<|message|>cat dog hen cat dog",
            "<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant<|channel|>final<|message|>",
        ),
    ],
)
def test_thinking_ends_after_its_tokens_and_the_model_goes_on(
    form: AnswerForm, most: int, wanted: str, said: str
) -> None:
    opening = wanted[: len(said.partition("{thought}")[0])] if "{thought}" in said else said.partition("</think>")[0]
    begin, tokens = len(ids(opening)), ids(wanted)
    found = followed(ThinkingBudget(form, most, BYTES), tokens.copy(), 400)
    expected = said.format(thought=text_of(tokens[begin : begin + most]))
    assert text_of(found).startswith(expected)
    mark = len(found) - len(tokens)
    assert found[begin + most + mark :] == tokens[begin + most :]


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        (THINKS, "It rains and rains and rains"),
        (THINKS, " \n" * 2 * MOST_LEADING_TOKENS + "<think>cat dog hen"),
        (THINKS, "<think>cat</think>It rains and rains and rains"),
        (OPENED, "cat</think>It rains and rains and rains"),
        (CHANNELS, "<|channel|>final<|message|>It rains and rains and rains"),
        (CHANNELS, "<|channel|>analysis<|message|>cat<|end|><|start|>assistant<|channel|>final<|message|>It rains"),
    ],
)
def test_an_answer_that_does_not_think_longer_is_left_alone(form: AnswerForm, wanted: str) -> None:
    budget = ThinkingBudget(form, len(ids("cat</think>")) + 5, BYTES)
    assert followed(budget, ids(wanted), 1000) == ids(wanted)


@pytest.mark.parametrize("looks", [(3, 9, 18), (18,)])
def test_thinking_that_goes_on_is_ended_within_a_limit_behind_its_budget(looks: tuple[int, ...]) -> None:
    answer = ids("<think>cat dog hen</think>It rains and rains")
    budget = ThinkingBudget(THINKS, 20, BYTES)
    for length in range(len(answer)):
        budget.forced_token(answer[:length])
        if length in looks:
            closed = "</think>" in text_of(answer[:length])
            assert budget.will_end(answer[:length], 40) is (length > len(ids("<think>")) and not closed)
    assert not ThinkingBudget(OPENED, 20, BYTES).will_end(ids("cat dog"), 20)
    assert ThinkingBudget(OPENED, 20, BYTES).will_end(ids("cat dog"), 21)


def test_a_row_without_a_budget_or_without_thinking_has_none() -> None:
    assert thinking_budget(PLAIN, 5, BYTES) is None
    assert thinking_budget(THINKS, None, BYTES) is None
    assert thinking_budget(THINKS, 5, object()) is None
    assert thinking_budget(THINKS, 0, BYTES) is not None


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "</th", "cat", " ", "\n", "ü", "<"]), max_size=12),
    st.integers(0, 12),
    st.booleans(),
    st.integers(0, 40),
)
def test_the_forced_token_follows_from_the_tokens_alone(pieces: list[str], most: int, opened: bool, cut: int) -> None:
    form = THINKS.model_copy(update={"opened": opened})
    said = followed(ThinkingBudget(form, most, BYTES), ids("".join(pieces)))
    resumed, whole = said[:cut], ids("".join(pieces))
    budget = ThinkingBudget(form, most, BYTES)
    budget_of_whole = ThinkingBudget(form, most, BYTES)
    forced = [budget_of_whole.forced_token(said[:n]) for n in range(len(said) + 1)]
    assert [budget.forced_token(said[:n]) for n in range(len(resumed), len(said) + 1)] == forced[len(resumed) :]
    assert sum(one is None for one in forced[:-1]) <= len(whole)


LONG = 40


def thinking_rows(count: int, sampled: Sampling = GREEDY) -> list[DecodingRequest]:
    form, pool = OPENED, known("bundled").pool
    return [
        answered.sequence(
            str(n), LONG, sampling=replace(sampled, ignore_eos=True, thinking_token_budget=4 + n), answer_form=form
        )
        for n, answered in enumerate(pool[:count])
    ]


@pytest.mark.parametrize("sampled", [GREEDY, Sampling(1.1, seed=4)])
def test_rows_think_within_their_budgets_however_they_are_computed(sampled: Sampling) -> None:
    loaded, mark = known("bundled").loaded, ids("</think>")
    rows = thinking_rows(5, sampled)
    plain = Engine(loaded, AMPLE)
    plain.insert(rows)
    expected = drain(plain)
    free = [replace(row, sampling=replace(row.sampling, thinking_token_budget=None)) for row in rows]
    unbound = {row.id: row.generated_ids for row in Engine(loaded, AMPLE).run(free)[0]}
    for n, row in enumerate(rows):
        found = expected[row.id].generated_ids
        assert found[: 4 + n] == unbound[row.id][: 4 + n]
        assert list(found[4 + n : 4 + n + len(mark)]) == mark
        assert len(found) == LONG
        begun = replace(free[n], generated_ids=found[: 4 + n + len(mark)])  # the answer goes on behind the mark
        assert Engine(loaded, AMPLE).run([begun])[0][0].generated_ids == found
    assert ends({row.id: row for row in Engine(loaded, AMPLE).run(rows)[0]}) == ends(expected)
    foreseen = [(*row.prompt_ids, *unbound[row.id]) for row in rows]
    foreseen += [(*row.prompt_ids, *expected[row.id].generated_ids) for row in rows]
    guessing = Engine(loaded, AMPLE, EngineOptions(guessing=Foreseen(foreseen)))
    guessing.insert(rows)
    assert ends(drain(guessing)) == ends(expected)
    assert guessing.figures.right_guesses > 0


def test_a_preempted_row_resumes_within_its_thinking_and_within_its_mark() -> None:
    loaded, [row] = known("bundled").loaded, thinking_rows(1)
    [expected], _ = Engine(loaded, AMPLE).run([row])
    for steps in range(1, 16):
        engine = Engine(loaded, AMPLE)
        engine.insert([row])
        for _ in range(steps):
            engine.step()
        resumed = engine.preempt(row.id)
        other = Engine(loaded, AMPLE)
        other.insert([resumed])
        assert drain(other)[row.id].generated_ids == expected.generated_ids


def test_an_answer_in_a_format_closes_its_thinking_first() -> None:
    loaded, [row] = known("bundled").loaded, thinking_rows(1)
    asked = JsonFormat('{"type": "integer", "minimum": 10, "maximum": 99}', answer_form=OPENED)
    plain = replace(row, format=asked, sampling=replace(row.sampling, ignore_eos=False), limit=60)
    [found], _ = Engine(loaded, AMPLE).run([plain])
    thought, closed, answer = text_of(list(found.generated_ids[:-1])).partition("</think>")
    assert thought == text_of(list(found.generated_ids[:4]))
    assert closed
    assert 10 <= int(answer) <= 99


def test_a_format_that_begins_at_once_knows_no_thinking() -> None:
    loaded, [row] = known("bundled").loaded, thinking_rows(1)
    ending = replace(row.sampling, ignore_eos=False)
    [found], _ = Engine(loaded, AMPLE).run([replace(row, format=JsonFormat(pattern="[ab]{9}"), sampling=ending)])
    assert text_of(list(found.generated_ids)).strip("ab") == "<eos>"


def test_log_probabilities_are_those_of_the_forced_tokens() -> None:
    loaded, [row] = known("bundled").loaded, thinking_rows(1)
    [found], _ = Engine(loaded, AMPLE).run([replace(row, top_logprobs=1)])
    assert tuple(one.id for one in found.logprobs) == found.generated_ids


@pytest.mark.parametrize(
    ("form", "said", "ends"),
    [
        (OPENED, "cat dog", True),
        (THINKS, "<think>cat dog", True),
        (THINKS, "<think>", True),
        (THINKS, "<thi", False),  # it has not begun to think
        (THINKS, "It rains", False),
        (OPENED, "cat</think>It rains", False),
        (CHANNELS, "<|channel|>analysis<|message|>cat", True),
        (CHANNELS, "<|channel|>final<|message|>cat", False),
    ],
)
def test_an_end_of_the_answer_within_its_thinking_is_the_end_of_the_thinking(
    form: AnswerForm, said: str, ends: bool
) -> None:
    generated, mark = ids(said), ids(CHANNELS_MARK if form.channels else "</think>")
    budget = ThinkingBudget(form, 500, BYTES)
    assert budget.forced_token(generated) is None
    assert budget.instead_of_end(generated, len(generated) + len(mark)) is None  # no room for an answer
    first = budget.instead_of_end(generated, len(generated) + len(mark) + 1)
    assert first == (mark[0] if ends else None)
    while ends and (forced := budget.forced_token(generated)) is not None:
        generated.append(forced)
    assert text_of(generated) == (said + text_of(mark) if ends else said)


@pytest.mark.parametrize(
    ("form", "said", "is_all"),
    [
        (OPENED, "cat", False),
        (OPENED, "cat</think>", True),
        (OPENED, "cat</think>\n\n", True),
        (OPENED, "cat</think>" + 8 * "\n", False),
        (OPENED, "cat</think>It", False),
        (THINKS, "<think>cat</think>", True),
        (THINKS, "It rains", False),
        (CHANNELS, "<|channel|>analysis<|message|>cat<|end|>", False),
        (CHANNELS, f"<|channel|>analysis<|message|>cat{CHANNELS_MARK}", True),
    ],
)
def test_an_answer_is_all_thinking_until_there_is_text_behind_the_mark(
    form: AnswerForm, said: str, is_all: bool
) -> None:
    generated, budget = ids(said), ThinkingBudget(form, 500, BYTES)
    for length in range(len(generated) + 1):
        budget.forced_token(generated[:length])
    assert budget.is_all(generated) is is_all


def test_a_model_that_always_wants_to_end_says_something_behind_its_thinking() -> None:
    loaded, mark, (row,) = known("bundled").loaded, ids("</think>"), ending_rows(1)
    (end,) = loaded.eos_ids
    wants_to_end = replace(row.sampling, logit_bias=((end, 100.0),))
    (ended,) = Engine(loaded, AMPLE).run([replace(row, sampling=wants_to_end)])[0]
    *thinking, said, last = ended.generated_ids
    assert (thinking, last, ended.reason) == (mark, end, "eos")
    assert text_of([said]).strip()


def ending_rows(count: int, limit: int = 200, most: int = 150) -> list[DecodingRequest]:
    """Rows whose model ends its answer long before the thinking's budget."""
    sampling = replace(GREEDY, thinking_token_budget=most)
    pool = known("bundled").pool[:count]
    return [one.sequence(str(n), limit, sampling=sampling, answer_form=OPENED) for n, one in enumerate(pool)]


def test_a_model_that_ends_while_it_thinks_answers_behind_the_mark_however_its_row_is_computed() -> None:
    loaded, mark, rows = known("bundled").loaded, ids("</think>"), ending_rows(4)
    free = [replace(row, sampling=GREEDY) for row in rows]
    unbound = {row.id: row.generated_ids for row in Engine(loaded, AMPLE).run(free)[0]}
    plain = Engine(loaded, AMPLE)
    plain.insert(rows)
    expected = drain(plain)
    for row in expected.values():
        thought = unbound[row.id][:-1]
        assert row.generated_ids[: len(thought) + len(mark)] == (*thought, *mark)
        assert len(row.generated_ids) > len(thought) + len(mark)
    assert ends({row.id: row for row in Engine(loaded, AMPLE).run(rows)[0]}) == ends(expected)
    guessing = Engine(
        loaded,
        AMPLE,
        EngineOptions(guessing=Foreseen([(*row.prompt_ids, *expected[row.id].generated_ids) for row in rows])),
    )
    guessing.insert(rows)
    assert ends(drain(guessing)) == ends(expected)

    for steps in range(len(unbound["0"]) - 3, len(expected["0"].generated_ids) - 1):  # also within the mark
        engine = Engine(loaded, AMPLE)
        engine.insert(rows[:1])
        for _ in range(steps):
            engine.step()
        other = Engine(loaded, AMPLE)
        other.insert([engine.preempt("0")])
        assert drain(other)["0"].generated_ids == expected["0"].generated_ids


def test_a_thought_ends_as_the_model_says_where_nothing_may_replace_its_end() -> None:
    loaded, [row] = known("bundled").loaded, ending_rows(1)
    [free], _ = Engine(loaded, AMPLE).run([replace(row, sampling=GREEDY)])
    end, most = free.generated_ids[-1], len(free.generated_ids) + len(ids("</think>")) - 1
    for asked in (replace(row, limit=most), replace(row, sampling=replace(row.sampling, stop_token_ids=(end,)))):
        [found], _ = Engine(loaded, AMPLE).run([asked])
        assert (found.generated_ids, found.reason) == (free.generated_ids, "eos")
