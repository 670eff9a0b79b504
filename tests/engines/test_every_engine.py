"""What the worker relies on, of every engine: the same answers, ends, counts and rows, whoever computes them."""

import json
import random
from dataclasses import replace

import pytest

from inference.engine_requests import DecodingRequest, FinishedRow, JsonFormat
from inference.toy.toy_applications import draw_request
from protocol.streaming.token_messages import Piece
from request_body import Sampling
from tasks.serving.results.live_tokens import LiveRows, LiveTexts
from tests.engines.tested_engines import REQUESTS, EngineUnderTest

pytestmark = pytest.mark.timeout(400)  # vLLM takes minutes to start where others use the cores too
SAME_SHARE = 0.995  # least share of greedy answers that are the same: rounding may turn a tie
# The least share of llama.cpp's sampled answers that are the same, and the number of likeliest tokens that they are
# drawn from. It rounds otherwise beside other rows, and a random number can then fall to another token: 1 of 120
# answers differed so, and 22 of 80 that were drawn from all tokens.
LLAMACPP_SAME_SHARE, LLAMACPP_TOP_K = 0.75, 5
SEEDS = range(1000, 1012)
TRIES = 20  # a busy machine may let a server's whole answer arrive before a row is taken out
WORDS = 55  # words in the input of a long row; its answer has twice as many
INTERRUPTED = 120  # tokens of a row that is taken out once and goes on: a fast server's 30 may all be there by then
ENDLESS = 1500  # tokens of a row that is taken out long before, where servers can be told to go on
PIECES = 4
UNICODE = ("naïve café", "东京 的 雨", "🙂 🚀 👩‍👩‍👧", "שלום עולם", "e\u0301 a\u200db")


def long_rows(tested: EngineUnderTest) -> list[DecodingRequest]:
    """Rows of more than a hundred tokens, which take any engine some time."""
    drawn = [draw_request("double", WORDS, random.Random(n)) for n in range(8)]
    return [tested.sequence(f"long {n}", toy.instruction, toy.input) for n, toy in enumerate(drawn)]


def test_greedy_answers_and_their_token_counts_are_ours(tested, right_answers):
    answers = tested.drain(tested.toy_sequences())
    assert answers.keys() == right_answers.keys()
    same = [
        tested.text(row) == tested.prompts.decode(right_answers[row.id].generated_ids)
        and row.tokens == right_answers[row.id].tokens
        and row.reason == right_answers[row.id].reason
        for row in answers.values()
    ]
    assert sum(same) >= SAME_SHARE * REQUESTS


def test_a_row_ends_at_its_limit(tested, right_answers):
    answers = tested.drain(tested.toy_sequences(20, limit=3))
    cut = {one for one in answers if right_answers[one].tokens > 3}
    assert cut
    for one in cut:
        assert (answers[one].reason, answers[one].tokens) == ("limit", 3)
        assert tested.text(answers[one]) == tested.prompts.decode(right_answers[one].generated_ids[:3])


def test_a_stop_string_ends_a_row(tested, right_answers):
    whole = max((right_answers[str(n)] for n in range(20)), key=lambda row: row.tokens)
    text = tested.prompts.decode(whole.generated_ids)
    stop = text.split()[2]
    sequence = next(one for one in tested.toy_sequences(20, stop=("no such text", stop)) if one.id == whole.id)
    row = tested.drain([sequence])[whole.id]
    assert row.reason == "stop"
    before = text[: text.index(stop)]
    assert tested.text(row).startswith(before.rstrip())
    assert row.tokens < whole.tokens


def seeded(tested, name: str, seed: int, top_k: int = 0, limit: int = 30, ignore_eos: bool = False):
    """A row whose next token the toy model does not know, at the highest temperature that clients may ask for."""
    sampling = Sampling(temperature=2.0, top_k=top_k, seed=seed, ignore_eos=ignore_eos)
    return tested.sequence(name, "Repeat the text.", "qwxz pfft 93847 zzgh", sampling=sampling, limit=limit)


def test_a_seed_gives_the_same_text_in_any_company_and_another_seed_another(tested):
    if not tested.own_sampling:
        refused = tested.drain([seeded(tested, "a", 3)])["a"]
        assert refused.reason == "refused"
        assert "temperature" in refused.refusal
        return
    rounds_alike = tested.kind != "llamacpp"
    rows = [seeded(tested, str(seed), seed, 0 if rounds_alike else LLAMACPP_TOP_K) for seed in SEEDS]
    alone = [tested.text(tested.drain([row])[row.id]) for row in rows]
    ended = tested.drain([*rows[:6], *(replace(row, id=f"toy {row.id}") for row in tested.toy_sequences(6)), *rows[6:]])
    company = [tested.text(ended[row.id]) for row in rows]
    same = sum(one == other for one, other in zip(alone, company, strict=True))
    assert same >= (1 if rounds_alike else LLAMACPP_SAME_SHARE) * len(SEEDS)
    assert len(set(company)) > len(SEEDS) / 2


def test_a_seed_gives_the_same_text_after_an_interruption(tested):
    row = seeded(tested, "a", 3, limit=INTERRUPTED, ignore_eos=True)
    if not tested.own_sampling:
        assert tested.drain([row])["a"].reason == "refused"
        return
    whole = tested.drain([row])["a"]
    for _ in range(TRIES):
        tested.engine.insert([row])
        ended = tested.until_tokens(3, ["a"])
        rest = tested.preempted("a")
        again = (ended | tested.drain([rest] if rest else []))["a"]
        assert (tested.text(again), again.tokens) == (tested.text(whole), whole.tokens)
        if rest:
            break
    assert rest


@pytest.mark.parametrize("text", UNICODE)
def test_any_text_goes_in_and_comes_out(tested, right_engine, text):
    row = tested.sequence("a", "Repeat the text.", text, limit=60)
    ours = right_engine.drain([row])["a"]
    there = tested.drain([row])["a"]
    assert (tested.text(there), there.tokens) == (right_engine.text(ours), ours.tokens)


def test_a_special_token_in_a_text_stays_text_unless_the_server_encodes_it_itself(tested, right_engine):
    row = tested.sequence("a", "Repeat the text.", "<eos> <system> x", limit=60)
    there, ours = tested.drain([row])["a"], right_engine.drain([row])["a"]
    assert (there.tokens == ours.tokens) == tested.takes_ids


def test_rows_says_what_runs_and_how_far_it_is(tested):
    rows = long_rows(tested)
    ids = [row.id for row in rows]
    tested.engine.insert(rows[:6])
    assert set(tested.engine.rows) == set(ids[:6])
    ended = tested.until_tokens(2, ids[:6])
    tested.engine.insert(rows[6:])
    assert set(tested.engine.rows) | ended.keys() == set(ids)
    ended |= tested.drain()
    assert {one: row.reason for one, row in ended.items()} == dict.fromkeys(ids, "eos")
    assert tested.engine.rows == {}


def test_an_id_cannot_run_twice(tested):
    (first, *_) = long_rows(tested)
    tested.engine.insert([first])
    with pytest.raises(ValueError, match="running already"):
        tested.engine.insert([first])
    tested.engine.remove(first.id)


def test_what_does_not_run_is_not_removed_and_cannot_be_preempted(tested):
    assert tested.engine.remove("nobody") is None
    with pytest.raises(KeyError):
        tested.engine.preempt("nobody")
    tested.engine.insert([])
    assert tested.engine.step() == []


def test_a_removed_row_gives_what_it_has_and_leaves_the_others_alone(tested):
    rows = long_rows(tested)
    whole = tested.drain(rows)
    for _ in range(TRIES):
        tested.engine.insert(rows)
        tested.until_tokens(2, [rows[3].id])
        removed = tested.engine.remove(rows[3].id)
        if removed:
            break
        tested.drain()
    assert removed is not None
    assert removed.reason == "removed"
    assert tested.text(whole[removed.id]).startswith(tested.text(removed).rstrip("\ufffd"))
    assert removed.id not in tested.engine.rows
    others = tested.drain()
    assert removed.id not in others
    assert {one: tested.text(row) for one, row in others.items()}.items() <= {
        one: tested.text(row) for one, row in whole.items()
    }.items()


def test_a_preempted_row_goes_on_to_the_same_answer(tested):
    rows = long_rows(tested)
    whole = tested.drain(rows)
    for _ in range(TRIES):
        tested.engine.insert(rows)
        ended = tested.until_tokens(3, [rows[0].id])
        rests = [rest for row in rows[:4] if (rest := tested.preempted(row.id))]
        ended |= tested.drain(rests)
        assert {one: (tested.text(row), row.tokens) for one, row in ended.items()} == {
            one: (tested.text(row), row.tokens) for one, row in whole.items()
        }
        if rests:
            break
    assert rests


def test_a_batch_runs_to_completion_in_the_order_given(tested, right_answers):
    sequences = tested.toy_sequences(30)
    results, figures = tested.engine.run(sequences)
    assert [row.id for row in results] == [one.id for one in sequences]
    assert [row.tokens for row in results] == [right_answers[one.id].tokens for one in sequences]
    assert figures.valid_tokens == sum(row.tokens for row in results)


def test_each_token_of_an_answer_has_its_log_probability_in_any_company_and_after_an_interruption(tested, server):
    able = tested.engine.server.capabilities
    if not able.logprobs:
        assert "logprobs" in able.lacks
        return
    rows = [replace(row, top_logprobs=top) for top, row in zip((0, 1, 5, 20), long_rows(tested), strict=False)]
    whole = tested.drain([*rows, *tested.toy_sequences(6)])
    for row in rows:
        ended = whole[row.id]
        assert [one.id for one in ended.logprobs] == list(ended.generated_ids)
        assert [len(one.likeliest) for one in ended.logprobs] == len(ended.logprobs) * [row.top_logprobs]
        for one in ended.logprobs:  # greedy: the token itself is the likeliest
            assert one.likeliest[:1] in ((), ((one.id, one.logprob),))
            assert one.logprob <= 0
    assert not whole["0"].logprobs
    tested.engine.insert(rows)
    ended = tested.until_tokens(3, [row.id for row in rows])
    resumed = ended | tested.drain([rest for row in rows if (rest := tested.preempted(row.id))])
    for row in rows:
        assert resumed[row.id].generated_ids == whole[row.id].generated_ids
        pairs = zip(resumed[row.id].logprobs, whole[row.id].logprobs, strict=True)
        assert all((one.id, one.logprob) == (other.id, pytest.approx(other.logprob, abs=1e-3)) for one, other in pairs)


def test_an_answer_keeps_to_the_format_that_was_asked_for(tested, server):
    able = tested.engine.server.capabilities
    if not able.response_format:
        assert "response_format" in able.lacks
        return
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    strict = JsonFormat(json.dumps({"const": "tree"}))
    rows = [
        replace(row, limit=400, format=asked, top_logprobs=top)
        for row, asked, top in zip(
            long_rows(tested),
            (strict, strict, JsonFormat(json.dumps(schema)), JsonFormat()),
            (None, 2, None, None),
            strict=False,
        )
    ]
    ended = tested.drain([*rows, *tested.toy_sequences(6)])
    for row in rows[:2]:
        assert json.loads(tested.text(ended[row.id])) == "tree"
    assert len(ended[rows[1].id].logprobs) == ended[rows[1].id].tokens
    for row in rows[2:]:  # the toy model may fill its limit with blanks, which JSON allows
        assert tested.text(ended[row.id]).lstrip().startswith("{")


def test_what_a_row_generates_can_be_read_between_steps(tested):
    first, *others = long_rows(tested)[:3]
    if tested.ignores_eos:
        first = replace(first, sampling=replace(first.sampling, ignore_eos=True), limit=ENDLESS)
    for _ in range(5):  # a busy machine may let a server's whole answer arrive between two steps
        pieces, row = read_while_it_runs(tested, [first, *others])
        assert {row_id for row_id, _, _ in pieces} <= {first.id}
        assert tested.text(row).startswith("".join(piece for _, _, piece in pieces))
        if len(pieces) >= PIECES:
            break
    assert len(pieces) >= PIECES


def read_while_it_runs(tested, rows) -> tuple[list[Piece], FinishedRow]:
    """Pieces of the first row, which somebody reads, until there are enough; and that row, taken out then."""
    texts = LiveTexts(tested.prompts.decode)
    pieces: list[Piece] = []
    ended: dict[str, FinishedRow] = {}
    live = LiveRows(lambda step: pieces.extend(texts.add(step)))
    live.begin([rows[0].id])
    tested.engine.insert(rows)
    while rows[0].id in tested.engine.rows and len(pieces) < PIECES:
        live.collect(tested.engine)
        ended |= {row.id: row for row in tested.engine.step()}
    taken_out = tested.engine.remove(rows[0].id)
    ended |= tested.drain()
    return pieces, taken_out or ended[rows[0].id]
