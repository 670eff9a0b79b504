"""Models as bytes and back: a digest that is checked before anything is read, then plain arrays, never pickle.

skops would be as safe, but importing it takes 2 s of CPU: it asks scikit-learn for every estimator that exists, which
imports torch. Predictors must start in under 2 s and without torch. So a stored model is a numpy archive of arrays,
read with pickling off, and only the classes in `KINDS` can be made from it.
"""

import hashlib
import io
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from learning.predictors.cold_start import UserInputLengthPredictor
from learning.predictors.forest import ForestPredictor
from learning.predictors.hidden_states import LenTokenPredictor, PooledStatesPredictor
from learning.predictors.paper_forests import SemanticFeaturesPredictor, TaskForestsPredictor
from learning.predictors.perception import PerceptionPredictor
from learning.serving_time import ServingTimes

Arrays = dict[str, npt.NDArray[Any]]


class Storable(Protocol):
    """A model whose whole state is arrays."""

    def to_arrays(self) -> Arrays:
        """Its whole state."""
        ...

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """The model of this state."""
        ...


# What a stored model calls its class. Models in databases have these names, so they stay when a class is renamed.
KINDS: dict[str, type[Storable]] = {
    "uilo": UserInputLengthPredictor,
    "pooled": PooledStatesPredictor,
    "perception": PerceptionPredictor,
    "len_token": LenTokenPredictor,
    "raft": TaskForestsPredictor,
    "semantic": SemanticFeaturesPredictor,
    "stacked": ForestPredictor,
    "serving_times": ServingTimes,
}
KIND = "kind"  # the archive's entry with that name


class Unreadable(Exception):
    """Stored bytes that no model can be made of, for whatever reason."""


class DigestMismatch(Unreadable):
    """Stored bytes differ from those that were published; they were not read."""


class NotStorable(Unreadable):
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
    """The stored model; raises DigestMismatch before anything is read, NotStorable for an unknown kind, Unreadable."""
    if digest(stored) != sha256:
        raise DigestMismatch(f"expected {sha256.hex()[:12]}…, got {digest(stored).hex()[:12]}…")
    try:
        return _read(stored)
    except (Unreadable, MemoryError):
        raise
    except Exception as error:  # half an archive, a missing array, one of another shape: each has its own exception
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def _read(stored: bytes) -> Any:
    with np.load(io.BytesIO(stored), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    kind = str(arrays.pop(KIND, ""))
    if kind not in KINDS:
        raise NotStorable(f"stored bytes are of kind {kind!r}")
    return KINDS[kind].from_arrays(arrays)
