"""Static and continuous batching against `model.generate` of each prompt alone, token for token."""

from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.engine_errors import OutOfMemory, RowTooLong
from inference.engine_requests import DecodingRequest, FinishedRow
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from request_body import Sampling
from tests.unit.inference.foreseen_tokens import Foreseen
from tests.unit.inference.tiny_models import AMPLE, ANSWER, MAKERS, POSITIONS, drain, known


def test_a_padded_batch_answers_as_each_prompt_alone(each_model):
    engine = Engine(each_model.loaded, AMPLE)
    results, figures = engine.run([known.sequence(str(n)) for n, known in enumerate(each_model.pool)])
    assert [row.generated_ids for row in results] == [known.answer for known in each_model.pool]
    assert [row.reason for row in results] == [
        "eos" if known.answer[-1] in each_model.loaded.eos_ids else "limit" for known in each_model.pool
    ]
    assert figures.pad_tokens > 0
    assert engine.rows == {}


def test_slices_go_on_where_the_last_one_stopped(each_model):
    engine = Engine(each_model.loaded, AMPLE)
    waiting = {str(n): known.sequence(str(n)) for n, known in enumerate(each_model.pool)}
    answers = {}
    while waiting:
        results, figures = engine.run(list(waiting.values()), iteration_limit=6)
        assert figures.iterations <= 6
        for row in results:
            if row.reason == "unfinished":
                waiting[row.id] = replace(waiting[row.id], generated_ids=row.generated_ids)
            else:
                answers[row.id] = row.generated_ids
                del waiting[row.id]
    assert answers == {str(n): known.answer for n, known in enumerate(each_model.pool)}


def test_finished_rows_stay_in_a_static_batch_and_their_tokens_count_as_invalid(endless):
    first, second = endless.pool[:2]
    _, figures = Engine(endless.loaded, AMPLE).run([first.sequence("short", 3), second.sequence("long", 10)])
    longer, shorter = max(len(first.prompt_ids), len(second.prompt_ids)), 3
    assert (figures.size, figures.length, figures.iterations, figures.generation_length) == (2, longer, 10, 10)
    assert figures.valid_tokens == shorter + 10
    assert figures.valid_tokens + figures.invalid_tokens == figures.size * figures.iterations
    assert figures.pad_tokens == abs(len(first.prompt_ids) - len(second.prompt_ids))


OPERATION = st.one_of(
    st.tuples(
        st.just("insert"), st.lists(st.tuples(st.integers(0, 7), st.integers(1, ANSWER)), min_size=1, max_size=4)
    ),
    st.tuples(st.just("step"), st.integers(1, 6)),
    st.tuples(st.sampled_from(["remove", "preempt", "insert preempted"]), st.integers(0, 5)),
)


@pytest.mark.parametrize("architecture", [*sorted(MAKERS), "bundled"])
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    schedule=st.lists(OPERATION, max_size=14),
    budget_tokens=st.sampled_from([80, 130, 200, 10_000]),
    block_tokens=st.sampled_from([1, 5, 32]),
    prefill_tokens=st.sampled_from([None, 1, 7, 30]),
    right=st.sampled_from([None, 0.5, 0.9]),
)
def test_any_schedule_of_joins_steps_removals_and_preemptions_changes_no_answer(
    architecture, schedule, budget_tokens, block_tokens, prefill_tokens, right
):
    here = known(architecture)
    budget_bytes = budget_tokens * here.loaded.delta_bytes
    foreseen = [(*answered.prompt_ids, *answered.answer) for answered in here.pool]
    guessing = None if right is None else Foreseen(foreseen, right=right)
    engine = Engine(
        here.loaded,
        budget_bytes,
        EngineOptions(block_tokens=block_tokens, prefill_tokens=prefill_tokens, guessing=guessing),
    )
    expected, preempted, numbers = {}, [], count()
    results: dict[str, FinishedRow] = {}

    def insert(sequences):
        try:
            engine.insert(sequences)
        except OutOfMemory:
            assert not {sequence.id for sequence in sequences} & engine.rows.keys()
            preempted.extend(sequences)

    def running(number):
        ids = list(engine.rows)
        return ids[number % len(ids)] if ids else None

    for operation, argument in schedule:
        if operation == "insert":
            sequences = []
            for index, limit in argument:
                name = str(next(numbers))
                sequences.append(here.pool[index].sequence(name, limit))
                expected[name] = here.pool[index].up_to(limit)
            insert(sequences)
        elif operation == "step":
            for _ in range(argument):
                results |= {row.id: row for row in engine.step()}
        elif operation == "insert preempted":
            if preempted:
                insert([preempted.pop()])
        elif (name := running(argument)) is not None:
            if operation == "preempt":
                with suppress(KeyError):  # it finished in its prefill, and the next step returns it
                    preempted.append(engine.preempt(name))
            elif (gone := engine.remove(name)) is not None:
                assert gone.reason == "removed"
                assert gone.generated_ids == expected.pop(name)[: len(gone.generated_ids)]
        assert engine.kv_bytes <= engine.kv_budget_bytes
    results |= drain(engine)
    while preempted:
        engine.insert([preempted.pop()])
        results |= drain(engine)
    assert {row.id: row.generated_ids for row in results.values()} == expected


def test_on_progress_can_remove_a_row(endless):
    first, second = endless.pool[:2]
    engine = Engine(endless.loaded, AMPLE)
    seen = []

    def on_progress(ended):
        seen.append((dict(engine.rows), [row.id for row in ended]))
        if engine.rows.get("a") == 4:
            engine.remove("a")

    results, _ = engine.run([first.sequence("a"), second.sequence("b", 6)], on_progress=on_progress)
    assert [(row.generated_ids, row.reason) for row in results] == [
        (first.up_to(4), "removed"),
        (second.up_to(6), "limit"),
    ]
    assert seen == [
        ({"a": 1, "b": 1}, []),
        ({"a": 2, "b": 2}, []),
        ({"a": 3, "b": 3}, []),
        ({"a": 4, "b": 4}, []),
        ({"b": 5}, []),
        ({}, ["b"]),
    ]


def test_an_abandoned_batch_leaves_the_engine_usable(endless):
    def lose_the_lease(ended):
        raise TimeoutError

    known = endless.pool[0]
    engine = Engine(endless.loaded, AMPLE)
    with pytest.raises(TimeoutError):
        engine.run([known.sequence("a")], on_progress=lose_the_lease)
    assert engine.rows == {}
    assert engine.run([known.sequence("a")])[0][0].generated_ids == known.answer


SAMPLING = Sampling(temperature=1.5, top_p=0.95, top_k=40, seed=3)


def test_a_seed_gives_the_same_text_in_any_batch(endless):
    first, *others = endless.pool
    engine = Engine(endless.loaded, AMPLE)
    alone = engine.run([first.sequence("a", sampling=SAMPLING)])[0][0].generated_ids
    assert alone != first.answer
    company = [known.sequence(str(n), sampling=Sampling(temperature=n / 2)) for n, known in enumerate(others)]
    assert engine.run([*company, first.sequence("a", sampling=SAMPLING)])[0][-1].generated_ids == alone
    engine.insert(company)
    engine.step()
    engine.insert([first.sequence("a", sampling=SAMPLING)])
    engine.step()
    preempted = engine.preempt("a")
    engine.step()
    engine.insert([preempted])
    assert drain(engine)["a"].generated_ids == alone
    half = engine.run([first.sequence("a", sampling=SAMPLING)], iteration_limit=9)[0][0].generated_ids
    rest = engine.run([first.sequence("a", sampling=SAMPLING, generated_ids=half)])[0][0].generated_ids
    assert rest == alone


def test_tokens_that_the_model_has_no_embedding_for_are_left_behind(endless):
    first = endless.pool[0]
    foreign = first.sequence("a", generated_ids=(1, 10**6))
    ((row,), _) = Engine(endless.loaded, AMPLE).run([foreign])
    assert row.generated_ids == first.answer[: foreign.limit]


def test_another_seed_gives_another_text(endless):
    engine = Engine(endless.loaded, AMPLE)
    texts = {
        engine.run([endless.pool[0].sequence("a", sampling=replace(SAMPLING, seed=seed))])[0][0].generated_ids
        for seed in range(5)
    }
    assert len(texts) == 5


def test_a_stop_string_ends_a_row_where_its_last_token_completes_it(endless):
    known = endless.pool[0]
    text = endless.loaded.tokenizer.decode(known.answer)
    stop = text[5:8]
    results, _ = Engine(endless.loaded, AMPLE).run([known.sequence("a", stop=("no such text", stop))])
    assert results[0].reason == "stop"
    assert results[0].generated_ids == known.up_to(text.index(stop) + 3)


def test_a_row_ends_at_the_models_last_position():
    engine = Engine(
        replace(known("gpt2").loaded, eos_ids=frozenset()), AMPLE
    )  # its positions are a table, so one more would be an error
    results, _ = engine.run([DecodingRequest("a", (9,) * (POSITIONS - 3), 50), DecodingRequest("b", (9,), 9)])
    assert (len(results[0].generated_ids), results[0].reason) == (3, "limit")
    assert len(results[1].generated_ids) == 9
    with pytest.raises(RowTooLong):
        engine.run([DecodingRequest("a", (9,) * POSITIONS, 50)])


def test_an_id_cannot_run_twice(endless):
    engine = Engine(endless.loaded, AMPLE)
    engine.insert([endless.pool[0].sequence("a")])
    with pytest.raises(ValueError, match="a is running already"):
        engine.insert([endless.pool[1].sequence("a")])
    with pytest.raises(KeyError):
        engine.preempt("b")
    assert engine.remove("b") is None


def test_nothing_in_gives_nothing_out(endless):
    engine = Engine(endless.loaded, AMPLE)
    assert engine.run([])[0] == []
    engine.insert([])
    assert engine.step() == []
