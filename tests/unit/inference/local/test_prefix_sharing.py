"""Equal beginnings of prompts are computed once, and no answer changes."""

import random
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cache
from itertools import count

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.engine_errors import OutOfMemory
from inference.engine_requests import DecodingRequest
from inference.local.batch_rows import BatchRow
from inference.local.costs.cost_counters import StepLog
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.kv.kv_cache import KvCache
from inference.local.prefix_sharing import MOST_GATHERED, PrefixSharing, shares_prefixes
from request_body import Sampling
from tests.unit.inference.foreseen_tokens import Foreseen
from tests.unit.inference.pretended_device import PretendedDevice, moved_to_device
from tests.unit.inference.tiny_models import AMPLE, VOCABULARY, Known, answers, drain, known

BLOCK = 4


@cache
def instructed() -> Known:
    """The tiny Llama without an EOS, with prompts that begin with one of two instructions, one of which is longer."""
    rng = random.Random(9)
    instruction = tuple(rng.randrange(8, VOCABULARY) for _ in range(46))

    def prompts():
        for number in count():
            tail = tuple(rng.randrange(8, VOCABULARY) for _ in range(rng.randint(1, 9)))
            yield instruction[: (23, 46)[number % 2]] + tail

    loaded = replace(known("llama").loaded, eos_ids=frozenset())
    return Known(loaded, answers(loaded, prompts(), 8))


@cache
def on_device() -> Known:
    with PretendedDevice():
        return replace(instructed(), loaded=moved_to_device(instructed().loaded))


class Counting:
    """Counts the tokens of the prefills that a model computes."""

    def __init__(self, decoder, fails_at=()):
        self.decoder, self.fails_at, self.prefilled, self.passes = decoder, fails_at, [], 0

    def __call__(self, tokens, *args, **kwargs):
        self.passes += 1
        if self.passes in self.fails_at:
            raise torch.OutOfMemoryError("the device has no more")
        if "logits_to_keep" in kwargs:
            self.prefilled.append(tuple(tokens.shape))
        return self.decoder(tokens, *args, **kwargs)


def sharing_engine(known, budget_bytes=AMPLE, fails_at=(), block_tokens=BLOCK, **options):
    decoder = Counting(known.loaded.decoder, fails_at)
    loaded = replace(known.loaded, decoder=decoder)
    return Engine(loaded, budget_bytes, EngineOptions(block_tokens=block_tokens, prefix_cache=True, **options)), decoder


def numbered(prompt, limit=3, **options):
    """A function that makes sequences of a prompt."""
    return lambda name: DecodingRequest(name, tuple(prompt), limit, **options)


def test_a_later_prompt_is_computed_behind_what_it_has_in_common_with_an_earlier_one():
    here = instructed()
    engine, decoder = sharing_engine(here)
    first, second = here.pool[1], here.pool[3]
    engine.insert([first.sequence("a")])
    done = drain(engine)
    engine.insert([second.sequence("b")])
    done |= drain(engine)
    assert decoder.prefilled == [(1, len(first.prompt_ids)), (1, len(second.prompt_ids) - 44)]
    assert [done[name].generated_ids for name in "ab"] == [first.answer, second.answer]
    assert [done[name].cached_tokens for name in "ab"] == [0, 44]


def test_rows_that_join_together_compute_their_common_beginning_once():
    here = instructed()
    engine, decoder = sharing_engine(here)
    engine.insert([one.sequence(str(n)) for n, one in enumerate(here.pool)])
    lengths = [len(one.prompt_ids) for one in here.pool]
    assert decoder.prefilled[0] == (1, lengths[0])  # with the shorter instruction, 20 tokens of it in blocks
    computed = sum(rows * length for rows, length in decoder.prefilled)
    assert sum(lengths) - 4 * 20 - 3 * 44 <= computed <= sum(lengths) - 4 * 20 - 3 * 44 + 7 * 9  # and padding
    done = drain(engine)
    assert [done[str(n)].generated_ids for n in range(8)] == [one.answer for one in here.pool]


def test_the_next_turn_of_a_conversation_finds_the_answer_of_the_last_one():
    here = instructed()
    engine, decoder = sharing_engine(here)
    engine.insert([here.pool[0].sequence("a", 12)])
    answer = drain(engine)["a"].generated_ids
    said = (*here.pool[0].prompt_ids, *answer)
    engine.insert([DecodingRequest("b", (*said, 9, 9, 9), 2)])
    assert decoder.prefilled[-1] == (1, len(said) + 3 - (len(said) - 1) // BLOCK * BLOCK)


def test_nothing_is_shared_under_another_salt_or_without_the_cache():
    here = instructed()
    engine, decoder = sharing_engine(here)
    prompt = numbered(range(9, 49))
    cached = {}
    for name, salt in (("a", "one"), ("b", "another"), ("c", "another")):
        engine.insert([replace(prompt(name), cache_salt=salt)])
        cached[name] = drain(engine)[name].cached_tokens
    assert decoder.prefilled == [(1, 40), (1, 40), (1, BLOCK)]
    assert cached == {"a": 0, "b": 0, "c": 40 - BLOCK}
    without = Engine(here.loaded, AMPLE, EngineOptions(block_tokens=BLOCK))
    without.insert([prompt("a"), prompt("b")])
    assert {row.cached_tokens for row in drain(without).values()} == {0}


def test_a_row_that_asks_for_its_prompts_log_probabilities_computes_all_of_it():
    here = instructed()
    engine, _ = sharing_engine(here)
    plain = numbered(range(9, 49))
    engine.insert([plain("a")])
    drain(engine)
    engine.insert([replace(plain("b"), prompt_logprobs=True, top_logprobs=1)])
    done = drain(engine)["b"]
    assert (done.cached_tokens, len(done.prompt_logprobs)) == (0, 40)


def test_models_whose_keys_depend_on_more_than_the_tokens_share_nothing():
    assert shares_prefixes(known("llama").loaded)
    assert not shares_prefixes(known("gpt2").loaded)
    windowed = known("llama").loaded
    assert not shares_prefixes(replace(windowed, layout=replace(windowed.layout, windows={"a": None})))


def test_what_is_cached_refuses_no_joiner_and_preempts_no_row():
    here = instructed()
    delta = here.loaded.delta_bytes
    engine, _ = sharing_engine(here, budget_bytes=60 * delta)
    for number in range(4):  # fills the memory with prefixes
        engine.insert([numbered(range(9 + number, 29 + number))(str(number))])
        drain(engine)
    engine.step()
    assert engine.kv_bytes == 0
    engine.insert([numbered([10 + 7 * n % 50 for n in range(56)])("all")])
    assert engine.kv_bytes == 56 * delta
    assert len(drain(engine)["all"].generated_ids) == 3


def test_rows_that_share_a_prefix_fit_a_budget_that_holds_it_once():
    here = instructed()
    delta = here.loaded.delta_bytes
    engine, _ = sharing_engine(here, budget_bytes=80 * delta)
    prompt = tuple(range(9, 49))
    engine.insert([DecodingRequest("0", prompt, 4)])
    for number in range(1, 5):
        engine.insert([DecodingRequest(str(number), (*prompt, 50 + number), 4)])
    assert len(engine.rows) == 5
    alone = Engine(here.loaded, AMPLE).run([DecodingRequest("4", (*prompt, 54), 4)])[0][0]
    assert drain(engine)["4"].generated_ids == alone.generated_ids


def test_what_running_rows_share_is_told_until_they_have_ended():
    steps = StepLog()
    engine, _ = sharing_engine(instructed(), step_log=steps)
    prompt = tuple(range(9, 49))
    engine.insert([DecodingRequest("0", prompt, 9)])
    engine.insert([DecodingRequest(str(number), (*prompt, 50 + number), 4) for number in range(1, 5)])
    engine.step()
    assert steps.shared_tokens == 4 * 40  # five rows read what one holds
    drain(engine)
    assert steps.shared_tokens == 0


def test_a_row_that_joins_running_ones_begins_behind_its_cached_prefix():
    here = instructed()
    engine, decoder = sharing_engine(here, prefill_tokens=5)
    first, second, running = here.pool[1], here.pool[3], here.pool[0]
    engine.insert([first.sequence("a", 2)])
    drain(engine)
    engine.insert([running.sequence("running")])
    before = len(decoder.prefilled)
    engine.insert([DecodingRequest("b", (*second.prompt_ids, *range(9, 19)), 2)])
    done = drain(engine)
    parts = [tokens - 1 for tokens, _ in decoder.prefilled[before:]]  # beside one of the running row
    assert (sum(parts), max(parts)) == (len(second.prompt_ids) + 10 - 44, 5)
    whole = Engine(here.loaded, AMPLE).run([DecodingRequest("b", (*second.prompt_ids, *range(9, 19)), 2)])[0][0]
    assert (done["b"].generated_ids, done["b"].cached_tokens) == (whole.generated_ids, 44)
    assert done["running"].generated_ids == running.answer


def test_a_row_that_joins_running_ones_copies_what_it_has_in_common_within_a_block():
    here = instructed()
    engine, decoder = sharing_engine(here, block_tokens=16)
    first, second, running = here.pool[1], here.pool[3], here.pool[0]
    engine.insert([first.sequence("a", 2)])
    drain(engine)
    engine.insert([running.sequence("running")])
    before = len(decoder.prefilled)
    engine.insert([second.sequence("b")])
    done = drain(engine)
    # of an instruction of 46 tokens two blocks, and 12 tokens of the block in which the prompts differ
    computed = sum(tokens - 1 for tokens, _ in decoder.prefilled[before:])
    assert (done["b"].cached_tokens, computed) == (44, len(second.prompt_ids) - 44)
    assert done["b"].generated_ids == second.answer
    assert done["running"].generated_ids == running.answer


def test_after_a_device_ran_out_of_memory_nothing_is_cached_and_no_answer_is_lost():
    here = instructed()
    engine, decoder = sharing_engine(here, fails_at={4})
    first, second = here.pool[1], here.pool[3]
    engine.insert([first.sequence("a")])
    engine.step()
    engine.step()
    with pytest.raises(OutOfMemory):
        engine.step()
    engine.insert([second.sequence("b")])
    done = drain(engine)
    assert (1, len(second.prompt_ids)) in decoder.prefilled
    assert [done[name].generated_ids for name in "ab"] == [first.answer, second.answer]


def rows_of(*prompts):
    return [
        BatchRow(DecodingRequest(str(n), tuple(prompt), 2), n, max_positions=2**20) for n, prompt in enumerate(prompts)
    ]


def test_rows_wait_for_a_common_beginning_only_if_that_saves_more_than_a_pass():
    kv = KvCache(known("llama").loaded.layout, 2**20, block_tokens=32, in_blocks=True)
    sharing = PrefixSharing(kv, on=True)
    many, few = rows_of(*[[9] * 96 + [n] for n in range(4)]), rows_of(*[[9] * 40 + [n] for n in range(3)])
    assert sharing.prefill_groups(many) == [many[:1], many[1:]]
    assert sharing.prefill_groups(few) == [few]
    assert PrefixSharing(kv, on=False).prefill_groups(many) == [many]
    longer = [8] * 64 + [7] * 65
    tree = rows_of([8] * 96, longer, [*longer, 1], [*longer, 2, 2], [6] * 97)
    groups = [[row.sequence.id for row in group] for group in sharing.prefill_groups(tree)]
    assert groups == [["0", "4"], ["1"], ["2", "3"]]


def test_rows_are_prefilled_apart_from_those_without_a_cached_beginning_and_from_too_many_with_a_long_one():
    kv = KvCache(known("llama").loaded.layout, 2**26, block_tokens=32, in_blocks=True)
    sharing, long = PrefixSharing(kv, on=True), [9] * (MOST_GATHERED // 2)
    (first,) = rows_of([*long, 1])
    kv.reserve([len(first.token_ids)])
    sharing.keep(first, 0, first.cached_tokens)
    rows = rows_of(*[[*long, n] for n in range(2, 7)], [8], [7])
    groups = [[row.sequence.id for row in group] for group in sharing.prefill_groups(rows)]
    assert groups == [["5", "6"], ["0", "1"], ["2", "3"], ["4"]]


OPERATION = st.one_of(
    st.tuples(st.just("insert"), st.lists(st.tuples(st.integers(0, 7), st.booleans()), min_size=1, max_size=4)),
    st.tuples(st.just("step"), st.integers(1, 6)),
    st.tuples(st.sampled_from(["remove", "preempt", "insert preempted"]), st.integers(0, 5)),
)


def cached_contents(engine):
    """What the cache holds for each key, of the last layer."""
    prefixes = engine._kv.arrangement.prefixes
    if prefixes is None or not engine._kv._keys:
        return {}
    sides = [
        engine._kv.arrangement.by_block(tensor, engine._kv.layout.slots[-1])
        for tensor in (engine._kv._keys[-1], engine._kv._values[-1])
    ]
    return {key: [side[block].clone() for side in sides] for key, block in prefixes._block_of.items()}


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    schedule=st.lists(OPERATION, max_size=14),
    budget_tokens=st.sampled_from([80, 120, 200, 10_000]),
    prefill_tokens=st.sampled_from([None, None, 5]),
    threshold=st.sampled_from([1.0, 0.7]),
    guessed=st.booleans(),
    block_tokens=st.sampled_from([BLOCK, 16]),  # parts of larger blocks are copied
    ahead=st.booleans(),  # whether a device computes the next pass while the host reads the tokens of the one before
)
def test_answers_with_shared_prefixes_are_those_without(
    schedule, budget_tokens, prefill_tokens, threshold, guessed, block_tokens, ahead
):
    here = on_device() if ahead else instructed()
    with PretendedDevice() if ahead else nullcontext():
        check_answers(here, schedule, budget_tokens, prefill_tokens, threshold, guessed, block_tokens)


def check_answers(here, schedule, budget_tokens, prefill_tokens, threshold, guessed, block_tokens):
    foreseen = [
        (*one.prompt_ids, *(sampled_answer(index), one.answer)[index % 2]) for index, one in enumerate(here.pool)
    ]
    engine, _ = sharing_engine(
        here,
        budget_tokens * here.loaded.delta_bytes,
        prefill_tokens=prefill_tokens,
        memory_threshold=threshold,
        guessing=Foreseen(foreseen) if guessed else None,
        block_tokens=block_tokens,
    )
    sampling = Sampling(temperature=1.3, seed=5)
    expected, preempted, numbers, results = {}, [], count(), {}
    held: dict[bytes, list[torch.Tensor]] = {}

    def insert(sequences):
        try:
            engine.insert(sequences)
        except OutOfMemory:
            preempted.extend(sequences)

    def step():
        with suppress(OutOfMemory):  # one row alone exceeds the threshold's memory: it waits in the engine
            results.update({row.id: row for row in engine.step()})

    for operation, argument in schedule:
        if operation == "insert":
            sequences = []
            for index, sampled in argument:
                name = str(next(numbers))
                options = {"sampling": sampling} if sampled else {}
                sequences.append(here.pool[index].sequence(name, 10, **options))
                expected[name] = sampled_answer(index) if sampled else here.pool[index].up_to(10)
            insert(sequences)
        elif operation == "step":
            for _ in range(argument):
                step()
        elif operation == "insert preempted" and preempted:
            insert([preempted.pop()])
        elif operation in ("remove", "preempt") and engine.rows:
            name = [*engine.rows][argument % len(engine.rows)]
            if operation == "preempt":
                with suppress(KeyError):  # it finished in its prefill
                    preempted.append(engine.preempt(name))
            elif engine.remove(name) is not None:
                del expected[name]
        assert engine.kv_bytes <= engine.kv_budget_bytes
        before, held = held, cached_contents(engine)
        for key in before.keys() & held.keys():  # nobody has written what is shared
            assert all(torch.equal(*sides) for sides in zip(before[key], held[key], strict=True))
    results |= drain(engine)
    while preempted:
        engine.insert([preempted.pop()])
        results |= drain(engine)
    assert {row.id: row.generated_ids for row in results.values()} == expected


@cache
def sampled_answer(index):
    here = instructed()
    asked = here.pool[index].sequence("a", 10, sampling=Sampling(temperature=1.3, seed=5))
    return Engine(here.loaded, AMPLE).run([asked])[0][0].generated_ids
