"""What a probe gets to see of running rows, and which rows give way by its predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import pytest
import torch

from inference.engine_errors import OutOfMemory
from inference.local import row_probe
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.forward.fused_model import MIDDLE, FusedModel
from inference.local.loading.model_loading import LoadedModel, prepare_model
from inference.local.row_probe import EPSILON, RowProbe
from scheduling.costs import Floats
from scheduling.request import RowLength
from tests.unit.inference.local.loading.test_model_loading import mistral
from tests.unit.inference.local.test_engine_memory import RunsOut
from tests.unit.inference.tiny_models import AMPLE, ANSWER, Letters, drain, known

EVERY = 16  # steps between two readings: one within an answer of ANSWER tokens


@dataclass
class RecordingProbe:
    """Keeps what it is told, and predicts what it was made with."""

    lengths: Mapping[str, RowLength] = field(default_factory=dict)
    readings: list[tuple[list[str], Floats, Floats]] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)

    def read(self, ids: Sequence[str], known: Floats, states: Floats, joining: bool = False) -> None:
        self.readings.append((list(ids), known, states))

    def ended(self, row_id: str, tokens: int) -> None:
        self.ends[row_id] = tokens


def engine_with(loaded, probe: RecordingProbe, budget_tokens: int = 0, threshold: float = 1.0) -> Engine:
    budget_bytes = budget_tokens * loaded.delta_bytes or AMPLE
    return Engine(
        loaded,
        budget_bytes,
        EngineOptions(memory_threshold=threshold, block_tokens=1, probe=RowProbe(loaded.decoder, probe, EVERY, 1e9)),
    )


def preemptions(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of rows that the engine preempts, in their order, as they are preempted."""
    preempted: list[str] = []
    offload = engine._offload

    def noted(row):
        preempted.append(row.sequence.id)
        offload(row)

    monkeypatch.setattr(engine, "_offload", noted)
    return preempted


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3", "bundled"])
def test_answers_are_the_same_with_a_probe(architecture):
    here, probe = known(architecture), RecordingProbe()
    engine = engine_with(here.loaded, probe)
    engine.insert([one.sequence(str(n)) for n, one in enumerate(here.pool)])
    done = drain(engine)
    assert [done[str(n)].generated_ids for n in range(len(here.pool))] == [one.answer for one in here.pool]
    assert probe.ends == {row.id: len(row.generated_ids) for row in done.values()}


@torch.inference_mode()
def assert_means_of_middle_layers(loaded: LoadedModel, tokens: Sequence[int], values: Floats) -> None:
    """The values are the mean of the normed states of the last of `tokens` behind the middle layers."""
    layers = {round(share * loaded.model.config.num_hidden_layers) for share in MIDDLE}
    states = loaded.model(torch.tensor([[*tokens]]), output_hidden_states=True).hidden_states
    each = [states[layer][0, -1] for layer in layers]  # states[0] are the embeddings
    normed = torch.stack([state * torch.rsqrt(state.square().mean() + EPSILON) for state in each])
    torch.testing.assert_close(torch.from_numpy(values).float(), normed.mean(0), rtol=1e-3, atol=1e-3)


def test_it_reads_the_middle_layers_states_of_each_rows_newest_token(endless):
    prompts, probe = endless.pool[:3], RecordingProbe()
    engine = engine_with(endless.loaded, probe)
    engine.insert([one.sequence("short", 3) if n == 0 else one.sequence(str(n)) for n, one in enumerate(prompts)])
    drain(engine)
    _, (ids, facts, states) = probe.readings  # as they join, and once in ANSWER steps
    assert sorted(ids) == ["1", "2"]  # the short row ended before
    for name, tokens, values in zip(ids, facts, states, strict=True):
        one = prompts[int(name)]
        assert tokens.tolist() == [len(one.prompt_ids), EVERY, ANSWER, ANSWER, ANSWER]
        assert_means_of_middle_layers(endless.loaded, [*one.prompt_ids, *one.answer[:EVERY]], values)


@pytest.mark.parametrize("alone", [False, True])
def test_a_row_that_joins_is_read_at_the_last_token_of_its_prompt(endless, alone):
    """Its prompt is computed with the next token of the other row, or, as the model has windows, alone."""
    loaded = prepare_model(mistral(sliding_window=64), Letters(), "sliding") if alone else endless.loaded
    first, second = endless.pool[:2]
    probe = RecordingProbe()
    engine = engine_with(loaded, probe)
    engine.insert([first.sequence("first")])
    engine.step()
    engine.insert([second.sequence("second")])
    engine.step()
    _, (ids, facts, states) = probe.readings
    assert (ids, facts[0, :2].tolist()) == (["second"], [len(second.prompt_ids), 0])
    assert_means_of_middle_layers(loaded, second.prompt_ids, states[0])


@pytest.mark.parametrize("apart", [False, True])
def test_rows_that_enter_an_empty_engine_are_read_at_the_last_token_of_their_prompts(endless, apart):
    prompts, probe = endless.pool[:3], RecordingProbe()
    engine = engine_with(endless.loaded, probe)
    engine.insert([one.sequence(str(n), prompt_logprobs=apart) for n, one in enumerate(prompts)])
    assert sorted(name for ids, _, _ in probe.readings for name in ids) == ["0", "1", "2"]
    for ids, facts, states in probe.readings:
        for name, tokens, values in zip(ids, facts, states, strict=True):
            prompt = prompts[int(name)].prompt_ids
            assert tokens[:2].tolist() == [len(prompt), 0]
            assert_means_of_middle_layers(endless.loaded, prompt, values)


def test_rows_of_a_pass_that_the_device_could_not_compute_are_read_once_it_could(endless):
    probe, decoder = RecordingProbe(), RunsOut(endless.loaded.decoder, {1, EVERY + 2})
    options = EngineOptions(block_tokens=1, probe=RowProbe(endless.loaded.decoder, probe, EVERY, 1e9))
    engine, one = Engine(replace(endless.loaded, decoder=decoder), AMPLE, options), endless.pool[0]
    with pytest.raises(OutOfMemory):
        engine.insert([one.sequence("a")])
    engine.insert([one.sequence("b")])
    with pytest.raises(OutOfMemory):
        drain(engine)
    assert [ids for ids, _, _ in probe.readings] == [["b"]]
    drain(engine)
    assert [(ids, facts[0, 1]) for ids, facts, _ in probe.readings] == [(["b"], 0), (["b"], EVERY)]
    assert_means_of_middle_layers(endless.loaded, [*one.prompt_ids, *one.answer[:EVERY]], probe.readings[1][2][0])


@pytest.mark.parametrize(("share", "read"), [(0.0, 1), (1e9, 4)])
def test_rows_are_read_as_they_join_only_within_a_share_of_the_steps_time(endless, share, read):
    probe = RecordingProbe()
    options = EngineOptions(block_tokens=1, probe=RowProbe(endless.loaded.decoder, probe, 10**6, share))
    engine = Engine(endless.loaded, AMPLE, options)
    for number, one in enumerate(endless.pool[:4]):
        engine.insert([one.sequence(str(number))])
        engine.step()
    assert len(probe.readings) == read


def test_only_passes_that_are_read_keep_states(endless):
    engine, middle = engine_with(endless.loaded, RecordingProbe()), endless.loaded.decoder.middle_states
    engine.insert([endless.pool[0].sequence("a")])
    assert middle.kept
    for _ in range(EVERY - 1):
        engine.step()
        assert not middle.kept
    engine.step()
    assert middle.kept


def test_a_state_wider_than_the_bound_is_added_up_in_groups(endless, monkeypatch):
    monkeypatch.setattr(row_probe, "MOST_VALUES", 8)
    probe = RecordingProbe()
    engine = engine_with(endless.loaded, probe)
    engine.insert([endless.pool[0].sequence("a")])
    drain(engine)
    assert [states.shape for _, _, states in probe.readings] == [(1, 8), (1, 8)]
    width = endless.loaded.model.config.hidden_size
    assert row_probe._signs(width).abs().sum(1).tolist() == [1] * width


def test_a_row_that_is_removed_teaches_nothing(endless):
    probe = RecordingProbe()
    engine = engine_with(endless.loaded, probe)
    engine.insert([one.sequence(str(n)) for n, one in enumerate(endless.pool[:2])])
    engine.step()
    engine.remove("0")
    drain(engine)
    assert probe.ends == {"1": ANSWER}


def test_a_batch_run_to_completion_is_read_while_any_row_runs(endless):
    probe = RecordingProbe()
    first, second = endless.pool[:2]
    engine_with(endless.loaded, probe).run([first.sequence("short", 2), second.sequence("long")])
    assert [ids for ids, _, _ in probe.readings] == [["short", "long"], ["long"]]
    assert probe.ends == {"short": 2, "long": ANSWER}


def test_rows_whose_only_token_comes_with_their_prefill_are_no_rows_to_read(endless):
    probe = RecordingProbe()
    engine = engine_with(endless.loaded, probe)
    for number in range(2 * EVERY):
        engine.insert([endless.pool[0].sequence(str(number), 1)])
        drain(engine)
    assert probe.readings == []


def scarce(endless, lengths: Mapping[str, RowLength], predicted: int = 60) -> Engine:
    """An engine whose memory holds three rows of its four once they have grown a little."""
    pool = endless.pool[:4]
    tokens = sum(len(one.prompt_ids) for one in pool)
    engine = engine_with(endless.loaded, RecordingProbe(lengths), tokens + 4 * 6)
    engine.insert([one.sequence(str(n), predicted=predicted) for n, one in enumerate(pool)])
    return engine


def test_the_row_with_most_tokens_to_come_gives_way_and_answers_stay_the_same(endless, monkeypatch):
    lengths = {str(n): RowLength(0, 300 if n == 1 else 20, 400) for n in range(4)}
    engine = scarce(endless, lengths)
    preempted = preemptions(engine, monkeypatch)
    done = drain(engine)
    assert preempted[0] == "1"
    assert [done[str(n)].generated_ids for n in range(4)] == [one.answer for one in endless.pool[:4]]


@pytest.mark.parametrize(("predicted", "first"), [(60, "1"), (400, "3")])
def test_a_row_that_was_not_read_yet_counts_as_it_was_predicted_at_its_arrival(endless, monkeypatch, predicted, first):
    engine = scarce(endless, {str(n): RowLength(0, 300 if n == 1 else 20, 400) for n in range(3)}, predicted)
    preempted = preemptions(engine, monkeypatch)
    drain(engine)
    assert preempted[0] == first


def test_the_youngest_row_gives_way_while_the_probe_predicts_nothing(endless, monkeypatch):
    engine = scarce(endless, {})
    preempted = preemptions(engine, monkeypatch)
    drain(engine)
    assert preempted[0] == "3"


def test_a_long_row_gives_way_once_however_many_rows_join_after_it(endless, monkeypatch):
    first, later = endless.pool[:2]
    names = count(1)
    lengths = {"long": RowLength(0, 300, 400)} | {str(n): RowLength(0, 20, 30) for n in range(1, 60)}
    engine = engine_with(endless.loaded, RecordingProbe(lengths), 3 * (len(first.prompt_ids) + ANSWER))
    preempted = preemptions(engine, monkeypatch)
    engine.insert([first.sequence("long")])
    done = set()
    while "long" not in done:
        if len(engine.rows) < 4:
            engine.insert([later.sequence(str(next(names)))])
        done |= {row.id for row in engine.step()}
    assert preempted.count("long") <= 1


def test_only_models_whose_layers_are_ours_can_be_read():
    assert isinstance(known("bundled").loaded.decoder, FusedModel)
    assert not known("gpt2").loaded.fused
