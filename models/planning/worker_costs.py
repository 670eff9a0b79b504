"""What `workers.curves` holds: the seconds of a worker's steps, and whether they were measured or learned.

The tag is `kind`. Rows of earlier releases have none and are read by their keys.
"""

from collections.abc import Mapping
from typing import Any

from scheduling.costs import LearnedCurves, ProfiledCurves, ServingCurves, WorkerCurves


def curves_to_store(worker: WorkerCurves | None) -> dict[str, Any] | None:
    """Returns the column's value; None if there are no curves."""
    if worker is None:
        return None
    fits = {"prefill": list(worker.curves.prefill), "decode": list(worker.curves.decode)}
    if isinstance(worker, ProfiledCurves):
        return {"kind": "quick_profile" if worker.quick else "profile", **fits}
    return {
        "kind": "learned",
        **fits,
        "error": round(worker.error, 4),
        "windows": worker.windows,
        "version": worker.version,
        "typical": [round(value, 1) for value in worker.typical],
    }


def curves_from_store(stored: Mapping[str, Any] | None) -> WorkerCurves | None:
    """Returns the stored curves; None if there are none."""
    if stored is None:
        return None
    curves = ServingCurves(tuple(stored["prefill"]), tuple(stored["decode"]))
    learned = stored if stored.get("kind") == "learned" else stored.get("learned", {})
    if "typical" in learned:
        rows, tokens = learned["typical"]
        return LearnedCurves(curves, learned["error"], learned["windows"], learned["version"], (rows, tokens))
    return ProfiledCurves(curves, quick=stored.get("kind") == "quick_profile" or "quick" in stored)
