"""What is learned of each application by itself: its line and its words.

A group is an application of which enough answers were seen, and each of its instructions of which enough were seen
if it has several; whatever else there is belongs to group 0, which is everything.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from learning.estimators.ridge_regression import fit_ridge
from learning.estimators.robust_regression import RobustLine, fit_line
from learning.features.hashed_text import rarity
from learning.predictors.length_predictor import Prompt

Numbers = npt.NDArray[np.float64]
Groups = npt.NDArray[np.int64]

FEWEST = 30  # answers that make a group
MOST_ROWS = 1024  # of a group for its ridge, whose time grows with their cube
COMMON = ""  # the key of group 0


def key_of(*parts: str) -> str:
    """A group's key; instructions may be long and private, so only a digest is kept."""
    return hashlib.sha256("\x1f".join(parts).encode("utf-8", "replace")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Applications:
    """The groups' parameters, one row a group."""

    keys: npt.NDArray[np.str_]  # (groups,)
    lines: Numbers  # (groups, the fields of Line)
    weights: npt.NDArray[np.float32]  # (groups, dimension)
    offsets: npt.NDArray[np.float32]  # (groups,)

    def groups(self, prompts: Sequence[Prompt]) -> Groups:
        """Each prompt's group."""
        return _groups([str(key) for key in self.keys], prompts)

    def line(self, groups: Groups) -> RobustLine:
        """The lines of these groups as one, whose fields are arrays."""
        return RobustLine(*self.lines[groups].T)

    def words(self, groups: Groups, texts: csr_array) -> Numbers:
        """What each text's words say of z, (texts,)."""
        said = np.zeros(len(groups))
        for group in np.unique(groups):
            rows = np.flatnonzero(groups == group)
            said[rows] = texts[rows] @ self.weights[group] + self.offsets[group]
        return _size_of(said)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Their state, to be stored; weights in half precision."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"weights": self.weights.astype(np.float16)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> "Applications":
        """The stored parameters."""
        own = {f.name: arrays[f.name] for f in fields(cls)}
        return cls(**own | {"weights": own["weights"].astype(np.float32)})


def _groups(keys: Sequence[str], prompts: Sequence[Prompt]) -> Groups:
    rows = {key: row for row, key in enumerate(keys)}
    common = rows[COMMON]
    return np.array(
        [rows.get(key_of(p.application, p.instruction), rows.get(key_of(p.application), common)) for p in prompts],
        np.int64,
    )


def fit_applications(prompts: Sequence[Prompt], lengths: Numbers, texts: csr_array) -> tuple[Applications, Numbers]:
    """The groups of these answers, and what words say of each answer's z had it not been seen, (answers,)."""
    of_instruction = np.array([key_of(p.application, p.instruction) for p in prompts])
    of_application = np.array([key_of(p.application) for p in prompts])
    keys = [COMMON]
    for application in np.unique(of_application):
        instructions = Counter(of_instruction[of_application == application].tolist())
        if instructions.total() >= FEWEST:
            keys.append(str(application))
            keys += sorted(k for k, many in instructions.items() if FEWEST <= many < instructions.total())
    groups = _groups(keys, prompts)
    inputs = np.array([p.input_tokens for p in prompts], np.float64)
    chance = np.random.default_rng(0)
    lines, weights, offsets = [], [], []
    said = np.zeros(len(prompts))
    for group, key in enumerate(keys):
        member = (of_instruction == key) | (of_application == key) | (key == COMMON)
        line = fit_line(inputs[member], lengths[member])
        some = chance.permutation(np.flatnonzero(member))[:MOST_ROWS]
        z = (lengths[some] - line.at(inputs[some])) / line.spread(inputs[some])
        weight, offset, left_out = _fit_words(texts[some], _order_of(z))
        lines.append([getattr(line, f.name) for f in fields(RobustLine)])
        weights.append(weight.astype(np.float32))
        offsets.append(np.float32(offset))
        own = np.flatnonzero(groups == group)
        said[own] = texts[own] @ weight + offset
        unseen = groups[some] == group
        said[some[unseen]] = left_out[unseen]
    return Applications(np.array(keys), np.array(lines), np.array(weights), np.array(offsets)), _size_of(said)


def _fit_words(texts: csr_array, order: Numbers) -> tuple[Numbers, float, Numbers]:
    """`fit_ridge` with all words alike or with rare ones weighing more, whichever orders left-out answers better.

    Names in code are rare and say much; in what people ask, common words say more.
    """
    fits = [
        (columns, *fit_ridge(csr_array(texts * columns), order)) for columns in (np.ones(texts.shape[1]), rarity(texts))
    ]
    columns, weights, offset, left_out = min(fits, key=lambda fit: float(np.sum((fit[3] - order) ** 2)))
    return weights * columns, offset, left_out


def _order_of(z: Numbers) -> Numbers:
    """z with its far ends drawn in, so that the order of common lengths counts for more than the size of rare ones."""
    return np.asarray(np.sign(z) * np.log1p(np.abs(z)))


def _size_of(order: Numbers) -> Numbers:
    """The z that `_order_of` drew in."""
    return np.asarray(np.sign(order) * np.expm1(np.abs(order)))
