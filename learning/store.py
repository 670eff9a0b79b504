"""Models as bytes and back: a digest that is checked before anything is read, then plain arrays, never pickle.

skops would do as well, but importing it takes 2 s of CPU: it asks scikit-learn for every estimator that exists,
which imports torch. Predictors must start in under 2 s and without torch, so a model is a numpy archive
of arrays and names, read with pickling off, and the class that it becomes is one of those in `KINDS`.
"""

import hashlib
import io
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from learning.predictors.forest import ForestPredictor
from learning.predictors.inst_usin import SemanticForest
from learning.predictors.perception import Perception
from learning.predictors.pooled_states import PooledStates
from learning.predictors.raft import ForestPerTask
from learning.predictors.uilo import UserInputLength
from learning.serving_time import ServingTimes

Arrays = dict[str, npt.NDArray[Any]]


class Storable(Protocol):
    """A model that is nothing but arrays."""

    def to_arrays(self) -> Arrays:
        """Its whole state."""
        ...

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """The model of this state."""
        ...


KINDS: dict[str, type[Storable]] = {
    "uilo": UserInputLength,
    "pooled": PooledStates,
    "perception": Perception,
    "raft": ForestPerTask,
    "semantic": SemanticForest,
    "stacked": ForestPredictor,
    "serving_times": ServingTimes,
}
KIND = "kind"


class DigestMismatch(Exception):
    """Stored bytes are not those that were published; they were not read."""


class NotStorable(Exception):
    """A model, or stored bytes, of a kind that the store does not know."""


def dump(model: object) -> bytes:
    """The model as bytes, for `load`; raises NotStorable."""
    for kind, cls in KINDS.items():
        if isinstance(model, cls):
            stored = io.BytesIO()
            np.savez_compressed(stored, allow_pickle=False, **model.to_arrays(), **{KIND: np.asarray(kind)})
            return stored.getvalue()
    raise NotStorable(f"{type(model).__name__} is none of {', '.join(KINDS)}")


def digest(stored: bytes) -> bytes:
    """SHA-256 of a stored model."""
    return hashlib.sha256(stored).digest()


def load(stored: bytes, sha256: bytes) -> Any:
    """The stored model; raises DigestMismatch before anything is read, NotStorable for an unknown kind."""
    if digest(stored) != sha256:
        raise DigestMismatch(f"expected {sha256.hex()[:12]}…, got {digest(stored).hex()[:12]}…")
    with np.load(io.BytesIO(stored), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    kind = str(arrays.pop(KIND, ""))
    if kind not in KINDS:
        raise NotStorable(f"stored bytes are of kind {kind!r}")
    return KINDS[kind].from_arrays(arrays)
