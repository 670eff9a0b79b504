"""A device computes the next pass while the host reads the tokens of the pass before; every answer stays what it was.

The pretended device shows what the host waits for, and has no token on the host before the host has waited for it.
"""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import cache

import pytest
import torch

from inference.engine_errors import OutOfMemory
from inference.engine_requests import DecodingRequest, FinishedRow
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.guessed_tokens import Guessing
from inference.local.loading.model_loading import LoadedModel
from inference.local.row_probe import RowProbe
from inference.local.tokens import sampling
from request_body import GREEDY, Sampling
from tests.unit.inference.local.test_row_probe import RecordingProbe
from tests.unit.inference.pretended_device import PretendedDevice, moved_to_device
from tests.unit.inference.tiny_models import AMPLE, ANSWER, drain, known

OPTIONS = EngineOptions(block_tokens=4, prefix_cache=True)


@cache
def on_device() -> LoadedModel:
    with PretendedDevice():
        return moved_to_device(known("llama").loaded)


def sequences(asked: Sampling = GREEDY) -> list[DecodingRequest]:
    """Rows that end by themselves, by a stop string, by a stop token and at limits of 1 to 20 tokens."""
    rows = [answered.sequence(str(number), sampling=asked) for number, answered in enumerate(known("llama").pool)]
    string, token = (Engine(known("llama").loaded, AMPLE).run([rows[n]])[0][0].generated_ids[-2] for n in (3, 4))
    rows[3] = replace(rows[3], stop=(chr(ord("a") + string),))
    rows[4] = replace(rows[4], sampling=replace(asked, stop_token_ids=(token,)))
    return [replace(row, limit=limit) for row, limit in zip(rows, (20, 20, 20, 20, 20, 1, 2, 13), strict=True)]


def one_by_one(
    rows: list[DecodingRequest], loaded: LoadedModel, options: EngineOptions = OPTIONS
) -> dict[str, FinishedRow]:
    """The rows join one after the other, while those before run."""
    engine = Engine(loaded, AMPLE, options)
    done: dict[str, FinishedRow] = {}
    for row in rows:
        engine.insert([row])
        done |= {each.id: each for each in engine.step()}
    return done | drain(engine)


SAMPLINGS = {
    "greedy": GREEDY,
    "sampled": Sampling(1.3, seed=5),
    "truncated": Sampling(1.3, top_k=30, top_p=0.9, min_p=0.001, seed=5),
}


@pytest.mark.parametrize("asked", SAMPLINGS)
@pytest.mark.parametrize("candidates", [1, 61])  # the host chooses nearly every truncated token anew, or none
def test_rows_that_join_and_end_answer_as_where_the_host_reads_each_token_first(monkeypatch, asked, candidates):
    rows = sequences(SAMPLINGS[asked])
    expected = one_by_one(rows, known("llama").loaded)
    assert {"eos", "stop", "limit"} == {row.reason for row in expected.values()}
    monkeypatch.setattr(sampling, "CANDIDATES_OF_DEVICES", candidates)
    with PretendedDevice() as device:
        assert one_by_one(rows, on_device()) == expected
    assert device.moved["read later"] > ANSWER / 2
    assert bool(device.moved["to host"]) is (asked == "truncated" and candidates == 1)


def test_so_do_rows_whose_every_third_step_waits_for_the_host(monkeypatch):
    """The step behind a token that the host chose anew begins with that token, also if it is read at once."""
    rows = [replace(row, limit=ANSWER) for row in sequences(SAMPLINGS["truncated"])]
    expected = one_by_one(rows, known("llama").loaded)
    monkeypatch.setattr(sampling, "CANDIDATES_OF_DEVICES", 1)
    with PretendedDevice():
        options = replace(OPTIONS, probe=RowProbe(on_device().decoder, RecordingProbe(), every=3))
        assert one_by_one(rows, on_device(), options) == expected


@pytest.mark.parametrize("asked", SAMPLINGS)
@pytest.mark.parametrize("iteration_limit", [1, 2, 6, None])
def test_so_do_those_of_a_static_batch_and_its_slices_with_the_same_figures(asked, iteration_limit):
    rows = sequences(SAMPLINGS[asked])
    expected, counted = Engine(known("llama").loaded, AMPLE).run(rows, iteration_limit)
    told: list[FinishedRow] = []
    with PretendedDevice() as device:
        found, figures = Engine(on_device(), AMPLE).run(rows, iteration_limit, told.extend)
    assert found == expected
    assert sorted(row.id for row in told) == sorted(row.id for row in expected if row.reason != "unfinished")
    assert replace(figures, prefill_s=0, decode_s=0) == replace(counted, prefill_s=0, decode_s=0)
    assert device.moved["read at once"] <= 1


def test_the_host_waits_for_no_pass_that_the_device_has_just_been_given():
    """While rows join with the passes of others, get blocks, end and leave."""
    rows, waited = sequences(), []
    with PretendedDevice() as device:
        engine = Engine(on_device(), AMPLE, OPTIONS)
        for row in rows:
            engine.insert([row])
            while len(engine.rows) > 3:
                device.moved.clear()
                engine.step()
                waited.append(Counter(device.moved))
    assert len(waited) > ANSWER / 2
    assert all(moved["read later"] == 1 for moved in waited)
    assert not any(moved.keys() - {"read later", "to device"} for moved in waited)


class Unpromising(Guessing):
    def guesses(self, texts, rooms):
        return [[] for _ in texts]


def test_nor_for_guesses_that_promise_nothing():
    with PretendedDevice() as device:
        engine = Engine(on_device(), AMPLE, EngineOptions(guessing=Unpromising(most=4)))
        engine.insert(sequences())
        drain(engine)
    assert device.moved["read later"] > ANSWER / 2
    assert device.moved["read at once"] <= 1


def test_a_row_that_is_removed_or_preempted_in_the_middle_loses_nothing_that_the_host_has_read():
    rows, answers = sequences(), known("llama").pool
    with PretendedDevice():
        engine = Engine(on_device(), AMPLE, OPTIONS)
        engine.insert(rows[:3])
        for _ in range(3):
            engine.step()
        had = engine.rows
        removed, preempted = engine.remove("0"), engine.preempt("1")
        assert removed is not None
        assert (removed.reason, removed.generated_ids) == ("removed", answers[0].up_to(had["0"]))
        assert preempted.generated_ids == answers[1].up_to(had["1"])
        engine.insert([preempted])
        done = drain(engine)
    assert {name: row.generated_ids for name, row in done.items()} == {n: answers[int(n)].answer for n in ("1", "2")}


def test_so_does_one_that_is_preempted_before_the_host_has_read_its_first_token():
    rows = sequences()
    with PretendedDevice():
        engine = Engine(on_device(), AMPLE, OPTIONS)
        engine.insert([rows[0]])
        engine.step()
        engine.insert([rows[1]])
        engine.step()  # computes its prompt
        assert engine.rows["1"] == 0
        engine.insert([engine.preempt("1")])
        assert drain(engine)["1"].generated_ids == known("llama").pool[1].answer


class Failing:
    """A decoder for some of whose passes the device has no memory."""

    def __init__(self, decoder, *at):
        self.decoder, self.at, self.passes = decoder, at, 0

    def __call__(self, *args, **options):
        self.passes += 1
        if self.passes in self.at:
            raise torch.OutOfMemoryError
        return self.decoder(*args, **options)


def test_nor_do_rows_whose_cache_is_lost_while_their_tokens_come():
    rows = sequences()[:3]
    with PretendedDevice():
        failing = replace(on_device(), decoder=Failing(on_device().decoder, 4))
        engine = Engine(failing, AMPLE, OPTIONS)
        engine.insert(rows)
        with pytest.raises(OutOfMemory):
            drain(engine)
        done = drain(engine)
    assert {name: row.generated_ids for name, row in done.items()} == {
        str(number): known("llama").pool[number].answer for number in range(3)
    }


@pytest.mark.parametrize("at", range(1, 7))
def test_a_row_that_joins_when_the_device_has_no_memory_joins_again_once(at):
    """Memory is short twice: the second time while the rows join again."""
    rows = sequences()[:3]
    with PretendedDevice():
        failing = replace(on_device(), decoder=Failing(on_device().decoder, at, at + 1))
        engine = Engine(failing, AMPLE, OPTIONS)
        ended: list[FinishedRow] = []
        waiting = [*rows]
        while waiting or engine.rows:
            with suppress(OutOfMemory):
                if waiting:
                    engine.insert(waiting[:1])  # adds no row if it fails
                    waiting.pop(0)
                ended += engine.step()
            assert len({*engine._joiners.waiting}) == len(engine._joiners.waiting)
    answers = known("llama").pool
    assert sorted((row.id, row.generated_ids) for row in ended) == [(str(n), answers[n].answer) for n in range(3)]


def test_tokens_that_are_never_read_do_not_reach_the_next_rows():
    """All rows end by themselves: the pass behind their ends is never read."""
    rows = [replace(row, limit=ANSWER) for row in sequences()[:3]]
    with PretendedDevice():
        engine = Engine(on_device(), AMPLE, OPTIONS)
        for _ in range(2):
            engine.insert(rows)
            assert {name: row.generated_ids for name, row in drain(engine).items()} == {
                str(number): known("llama").pool[number].answer for number in range(3)
            }


@pytest.mark.parametrize("budget_tokens", range(40, 400, 24))
def test_a_static_batch_that_outgrows_its_budget_has_told_of_the_rows_that_ended(budget_tokens):
    rows = sequences()

    def told_by(loaded: LoadedModel) -> tuple[bool, list[str]]:
        told: list[FinishedRow] = []
        try:
            Engine(loaded, budget_tokens * loaded.delta_bytes).run(rows, on_progress=told.extend)
        except OutOfMemory:
            return True, sorted(row.id for row in told)
        return False, sorted(row.id for row in told)

    expected = told_by(known("llama").loaded)
    with PretendedDevice():
        assert told_by(on_device()) == expected
