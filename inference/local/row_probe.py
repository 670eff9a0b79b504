"""Gives a probe, which predicts generation lengths, middle layers' states of running rows, and the rows that ended.

A row is first read when its prompt has been computed, at the prompt's last token; later all rows are read every few
steps. Beside the passes of a small model readings take long, so rows are read as they join only within a share of the
passes' time.

A state wider than MOST_VALUES is reduced to as many sums over groups of its values, with random signs, so that a wide
model does not take more of the probe's memory and time.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from inference.accelerator import clock_of
from inference.local.batch_rows import BatchRow
from inference.local.forward.fused_model import FusedModel
from scheduling.costs import Floats
from scheduling.request import RowLength

READ_EVERY = 32  # decoding steps; every 16 cost twice the time and ranked rows alike (docs/results/real_lengths.md)
# Readings of joining rows take at most this share of the passes' time; with the other readings and the fits the bundled
# model's steps take about 1 % longer. On SmolLM2 a reading takes less (docs/results/real_lengths.md).
JOINS_SHARE = 0.005
# The most values of a state. SmolLM2's 576, reduced to 256 or 128, ranked running rows at a tau 0.02 or 0.05 lower.
MOST_VALUES = 1024
SEED = 1  # any other would do, but it must not change between readings
EPSILON = 1e-6  # added to the mean square by whose root a state is divided


class Probe(Protocol):
    """Predicts how long running rows will become; `learning/length_probe.py` has ours."""

    @property
    def lengths(self) -> Mapping[str, RowLength]:
        """The lengths of the rows read last, by id, as far as the predictions are good enough."""

    def read(self, ids: Sequence[str], known: Floats, states: Floats, joining: bool = False) -> None:
        """Predict these rows from their states, (rows, values), and from `known`, (rows, 5).

        They are all running rows, or with `joining` only rows that join the others. `known` has the tokens of the
        prompt, those generated so far, the limit, and the median and upper quantile of the length as predicted at
        arrival.
        """

    def ended(self, row_id: str, tokens: int) -> None:
        """Learn from a row that ended with this many tokens, by itself or at its limit."""


class RowProbe:
    """Lets a probe read the running rows every `every` decoding steps, and rows as they join."""

    def __init__(
        self, model: FusedModel, probe: Probe, every: int = READ_EVERY, joins_share: float = JOINS_SHARE
    ) -> None:
        self._middle, self._probe, self._every, self._steps = model.middle_states, probe, every, 0
        self._joins_share, self._joins_s, self._passes_s = joins_share, 0.0, 0.0
        self._joining = False  # whether the rows to read are only joining ones
        self._read: list[tuple[int, str, tuple[int, int, int, int, int]]] = []  # place in the pass, id, known values
        self._signs: Tensor | None = None  # [hidden, MOST_VALUES], made if a state is wider

    @property
    def lengths(self) -> Mapping[str, RowLength]:
        """The lengths that the probe predicts; safe to read in another thread."""
        return self._probe.lengths

    def reads(self, rows: Sequence[BatchRow], parts: Mapping[int, int]) -> bool:
        """Return whether the next step's states are read."""
        return (self._steps + 1) % self._every == 0 or bool(self._joined(rows, parts))

    def before_pass(self, rows: Sequence[BatchRow], parts: Mapping[int, int], decodes: bool) -> None:
        """Note the rows to read: every few steps those that decode, and those whose prompts end with the `parts`.

        If the pass decodes no token, it computes the parts alone, and only they have a place in it.
        """
        self._steps += decodes
        due, places = decodes and self._steps % self._every == 0, range(len(rows)) if decodes else [*parts]
        running = [index for index, row in enumerate(rows) if due and row.decodes]
        chosen, self._joining = [*running, *self._joined(rows, parts)], not running
        self._read = [(places.index(index), rows[index].sequence.id, _known(rows[index])) for index in chosen]
        self._middle.wanted = bool(chosen)
        self._middle.kept.clear()

    def after_pass(self, ended: Sequence[BatchRow], computed_s: float = 0.0) -> None:
        """Read the noted rows after a pass of `computed_s` by the device's clock, and tell of the rows that ended."""
        if self._middle.wanted:
            clock = clock_of(self._middle.kept[0].device)
            began = clock()
            places, ids, known = zip(*self._read, strict=True)
            states = self._projected(torch.cat(self._middle.kept)[: max(places) + 1])
            self._probe.read([*ids], np.array(known, np.float64), states[[*places]], self._joining)
            self._joins_s += clock() - began if self._joining else 0.0
        self._passes_s += computed_s
        self._middle.wanted = False
        for row in ended:
            self.ended(row)

    def ended(self, row: BatchRow) -> None:
        """Reports an ended row's number of tokens to the probe, unless the row was refused or removed."""
        if row.finish_reason in ("eos", "landed", "stop", "limit", "loop"):
            self._probe.ended(row.sequence.id, len(row.generated))

    def longest(self, rows: Sequence[BatchRow]) -> BatchRow | None:
        """Return the row with the most tokens still to come, or None while the probe predicts nothing.

        A row that the probe has not read yet counts as predicted at its arrival. A row that was preempted before comes
        last, because rows that join later could keep a long row waiting.
        """
        lengths = self.lengths

        def left(row: BatchRow) -> int:
            known = lengths.get(row.sequence.id)
            return (known.median if known else row.sequence.predicted or row.limit) - len(row.generated)

        return max(rows, key=lambda row: (not row.preempted, left(row), row.entry_number)) if lengths else None

    def _joined(self, rows: Sequence[BatchRow], parts: Mapping[int, int]) -> list[int]:
        """Return the rows to be read as their prompts end with these parts; none whose answers have only one token."""
        may_read = self._joins_s <= self._joins_share * self._passes_s
        ends = [(index, rows[index]) for index, count in parts.items() if may_read and count == rows[index].unjoined]
        return [index for index, row in ends if row.limit > len(row.generated) + 1]

    def _projected(self, states: Tensor) -> Floats:
        """Return means of states, [rows, layers, hidden], scaled to the same norm, as (rows, values) on the host."""
        width = states.shape[-1]
        normed = torch.nn.functional.rms_norm(states.float(), (width,), eps=EPSILON).mean(1)
        if width > MOST_VALUES:
            if self._signs is None:
                self._signs = _signs(width).to(states.device)
            normed = normed @ self._signs
        return np.asarray(normed.cpu().numpy())


def _known(row: BatchRow) -> tuple[int, int, int, int, int]:
    asked = row.sequence
    median, upper = asked.predicted or row.limit, asked.predicted_upper or row.limit
    return len(asked.prompt_ids), len(row.generated), row.limit, median, upper


def _signs(hidden: int) -> Tensor:
    """Return the matrix that adds each of `hidden` dimensions to one of MOST_VALUES groups, with a random sign."""
    random = np.random.default_rng(SEED)
    signs = np.zeros((hidden, MOST_VALUES), np.float32)
    signs[np.arange(hidden), random.integers(MOST_VALUES, size=hidden)] = random.choice([-1.0, 1.0], hidden)
    return torch.from_numpy(signs)
