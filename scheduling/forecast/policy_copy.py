"""A copy of a policy with everything that waits in it, which may be played forward while the original serves on."""

import io
import pickle
from typing import Any

from scheduling.policy import Policy
from scheduling.request import Request


def copy_of(policy: Policy) -> Policy:
    """An equal policy that shares only what never changes: requests, and estimators of serving times.

    Policies keep tables by the identity of such an estimator, which therefore must not be copied. Pickling takes a
    fifth of what `copy.deepcopy` takes: with 20,000 requests waiting some tens of milliseconds.
    """
    stored = io.BytesIO()
    pickler = _SharingPickler(stored, pickle.HIGHEST_PROTOCOL)
    pickler.dump(policy)
    stored.seek(0)
    unpickler = _SharingUnpickler(stored)
    unpickler.shared = pickler.shared
    copied: Policy = unpickler.load()
    return copied


class _SharingPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.shared: dict[int, Any] = {}

    def persistent_id(self, obj: Any) -> int | None:
        kind = type(obj)
        if kind is Request or hasattr(kind, "serve_many_s"):
            self.shared[id(obj)] = obj
            return id(obj)
        return None


class _SharingUnpickler(pickle.Unpickler):
    shared: dict[int, Any]

    def persistent_load(self, pid: int) -> Any:
        return self.shared[pid]
