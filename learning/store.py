"""Stores learned models as bytes of plain arrays, never as pickles; checks their digest before it reads anything.

How a model gets into service: `tasks/training/refit_jobs.py` fits a candidate (`learning/retraining/refit.py`), asks
`learning/retraining/promotion_gate.py`, stores it with `dump` and publishes it (`models/model_versions.py:publish`).
`tasks/prediction/predictor_in_service.py` and the planner `load` the version that is active in the database.

skops would be as safe, but importing it takes 2 s of CPU and imports torch, and predictors must start in under 2 s and
without torch. So a stored model is a numpy archive of arrays, read with pickling off, and only the classes in `KINDS`
can be made from it.
"""

import hashlib
import io
from typing import Any, Protocol, Self

import numpy as np

from learning.estimators.serving_time import ServingTimes
from learning.features.length_predictor import Arrays
from learning.predictors.cold_start import UserInputLengthPredictor
from learning.predictors.forest import ForestPredictor
from learning.predictors.hidden_states import LenTokenPredictor, PooledStatesPredictor
from learning.predictors.paper_forests import SemanticFeaturesPredictor, TaskForestsPredictor
from learning.predictors.perception import PerceptionPredictor


class Storable(Protocol):
    """A model whose whole state is named arrays."""

    def to_arrays(self) -> Arrays:
        """Return the state."""
        ...

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Return the model with this state."""
        ...


# The names of classes in stored models. A name stays when its class is renamed, because stored models have the name.
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
KIND = "kind"  # the archive's entry that holds the name of the class


class Unreadable(Exception):
    """Stored bytes cannot be read as a model."""


class DigestMismatch(Unreadable):
    """Stored bytes differ from those that were published, and were not read."""


class NotStorable(Unreadable):
    """The store does not know the kind of a model or of stored bytes."""


def dump(model: object) -> bytes:
    """Return the model as bytes for `load`; raise NotStorable."""
    for kind, cls in KINDS.items():
        if isinstance(model, cls):
            stored = io.BytesIO()
            np.savez_compressed(stored, allow_pickle=False, **model.to_arrays(), **{KIND: np.asarray(kind)})
            return stored.getvalue()
    raise NotStorable(f"{type(model).__name__} is none of {', '.join(KINDS)}")


def digest(stored: bytes) -> bytes:
    """Return the SHA-256 digest of a stored model."""
    return hashlib.sha256(stored).digest()


def load(stored: bytes, sha256: bytes) -> Any:
    """Return the stored model; raise DigestMismatch before reading, NotStorable for an unknown kind, or Unreadable."""
    if digest(stored) != sha256:
        raise DigestMismatch(f"expected {sha256.hex()[:12]}…, got {digest(stored).hex()[:12]}…")
    try:
        with np.load(io.BytesIO(stored), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        kind = str(arrays.pop(KIND, ""))
        if kind not in KINDS:
            raise NotStorable(f"stored bytes are of kind {kind!r}")
        return KINDS[kind].from_arrays(arrays)
    except (Unreadable, MemoryError):
        raise
    except Exception as error:  # truncated archives and missing or malformed arrays raise many kinds of exceptions
        raise Unreadable(f"{type(error).__name__}: {error}") from error
