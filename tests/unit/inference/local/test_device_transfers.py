"""What passes between host and device while rows run: token ids, and what the length probe reads."""

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from inference.engine_requests import DecodingRequest, FinishedRow
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.loading.model_loading import LoadedModel
from inference.local.row_probe import READ_EVERY, RowProbe
from request_body import Sampling
from tests.unit.inference.foreseen_tokens import Foreseen
from tests.unit.inference.pretended_device import HOST, OnDevice, PretendedDevice, moved_to_device
from tests.unit.inference.tiny_models import AMPLE, drain, known

WIDE = 64  # tokens of a block that holds a whole row, so that no row gets another one
GUESSES = 4
WAITING = ("wait", "to device, waiting")
READ = ("read later", "read at once", "to host")


def endless() -> LoadedModel:
    return replace(known("llama").loaded, eos_ids=frozenset())


@cache
def on_device() -> LoadedModel:
    with PretendedDevice():
        return moved_to_device(endless())


def rows(limit: int = 8, **options) -> list[DecodingRequest]:
    pool = known("llama").pool[:3]
    return [answered.sequence(str(number), limit=limit, **options) for number, answered in enumerate(pool)]


def served(
    sequences: list[DecodingRequest], later: int = 0, **options
) -> tuple[dict[str, FinishedRow], list[Counter[str]]]:
    """The finished rows, and what was moved in each step; the last `later` rows are inserted beside the others."""
    found: dict[str, FinishedRow] = {}
    steps: list[Counter[str]] = []
    with PretendedDevice() as device:
        engine = Engine(on_device(), AMPLE, EngineOptions(**options))
        engine.insert(sequences[: len(sequences) - later])
        for joiner in [*sequences[len(sequences) - later :], None]:
            while engine.rows:
                device.moved.clear()
                found |= {row.id: row for row in engine.step()}
                steps.append(Counter(device.moved))
                if joiner is not None:
                    engine.insert([joiner])
                    break
    return found, steps


def alone(sequences: list[DecodingRequest]) -> dict[str, FinishedRow]:
    engine = Engine(endless(), AMPLE)
    engine.insert(sequences)
    return drain(engine)


def answers(found: dict[str, FinishedRow]) -> dict[str, tuple[int, ...]]:
    return {name: row.generated_ids for name, row in found.items()}


def test_a_step_of_the_same_rows_moves_nothing_but_their_tokens_to_the_host():
    found, (first, *others) = served(rows(), block_tokens=WIDE)
    assert found == alone(rows())
    assert first["to device"]  # where the rows' tokens are
    assert others == [*[{"read later": 1}] * 6, {"read at once": 1}]  # the last tokens, behind which none are computed


# what rows ask for, and how often the host waits for the pass that it has just given to the device
ASKED: dict[str, tuple[int, dict[str, Any]]] = {
    "greedy": (0, {}),
    "sampled": (0, {"sampling": Sampling(1.3, seed=5)}),
    "truncated": (0, {"sampling": Sampling(1.0, top_k=9, top_p=0.8, min_p=0.01, seed=2)}),
    "penalised": (1, {"sampling": Sampling(repetition_penalty=1.4, frequency_penalty=0.3, presence_penalty=0.2)}),
    "biased, of some length": (1, {"sampling": Sampling(min_tokens=5, logit_bias=((7, 1.5), (9, -100.0)))}),
    "log probabilities": (5, {"top_logprobs": 2}),
}


@pytest.mark.parametrize("asked", ASKED)
def test_the_host_waits_for_tokens_and_for_what_a_row_asks_of_logits(asked):
    most, options = ASKED[asked]
    found, steps = served(rows(**options), block_tokens=4)
    assert answers(found) == answers(alone(rows(**options)))
    *computing, last = steps
    assert all(moved["read at once"] + moved["to host"] == most for moved in computing)
    assert last["read at once"] + last["to host"] == max(most, 1)
    assert not any(moved[kind] for moved in steps for kind in WAITING)


def test_the_host_waits_no_longer_while_rows_join_and_guesses_are_verified():
    expected = alone(rows(limit=14))
    foreseen = [(*row.prompt_ids, *expected[row.id].generated_ids) for row in rows()]
    guessing = Foreseen(foreseen, most=GUESSES)
    found, steps = served(rows(limit=14), later=2, block_tokens=4, prefix_cache=True, guessing=guessing)
    assert answers(found) == answers(expected)
    assert all(sum(moved[kind] for kind in READ) <= 2 + GUESSES for moved in steps)
    assert not any(moved[kind] for moved in steps for kind in WAITING)


class Unimpressed:
    """A probe that predicts nothing."""

    def __init__(self):
        self.lengths, self.read_rows = {}, 0

    def read(self, ids, known, states, joining=False):
        self.read_rows = len(states)

    def ended(self, row_id, tokens):
        pass


def test_a_probe_reads_the_rows_states_in_one_copy():
    probe = Unimpressed()
    _, steps = served(rows(limit=READ_EVERY + 4), block_tokens=WIDE, probe=RowProbe(on_device().decoder, probe))
    assert probe.read_rows
    assert [number for number, moved in enumerate(steps, 1) if moved["to host"]] == [READ_EVERY]
    assert steps[READ_EVERY - 1] == {"read at once": 2, "to host": 1}


def test_a_number_that_the_host_asks_for_and_a_blocking_copy_are_counted():
    with PretendedDevice() as device:
        tensor = torch.arange(4, device="meta")
        assert isinstance(tensor, OnDevice)
        tensor.sum().item()
        torch.ones(4).to("meta")
        tensor.cpu()
        with pytest.raises(RuntimeError, match="of the host and of the device"):
            tensor + torch.ones(4, device=HOST)
    assert device.moved == {"wait": 1, "to device, waiting": 1, "to host": 1}
