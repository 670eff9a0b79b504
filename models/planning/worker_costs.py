"""Stores the seconds of a worker's steps, tagged by `kind` as measured or learned, and the models that it can load."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from scheduling.costs import LearnedCurves, ProfiledCurves, ServingCurves, WorkerCurves, linearized
from scheduling.kv_memory import MOST_TOKENS, KvMemory
from scheduling.policy import Loadable

MEMORY = tuple(field.name for field in fields(KvMemory))
# SQL for `KvMemory.longest_row_tokens` of a worker, the row `w` of the table `workers`
LONGEST_ROW = f"""greatest(w.theta_bytes / w.delta_bytes, least({MOST_TOKENS}, case
    when w.windowed_bytes < w.delta_bytes
        then (w.theta_bytes - w.window_tokens * w.windowed_bytes) / (w.delta_bytes - w.windowed_bytes)
    when w.theta_bytes >= w.window_tokens * w.windowed_bytes then {MOST_TOKENS} else 0 end))"""


def curves_to_store(worker: WorkerCurves | None) -> dict[str, Any] | None:
    """Returns the column's value, or None if there are no curves."""
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
    """Returns the stored curves, or None if this release cannot read them; the planner then has defaults."""
    if stored is None:
        return None
    learned = stored if "kind" in stored else stored.get("learned", {})
    kind = stored.get("kind") or _kind_before_tags(stored)
    try:
        curves = ServingCurves(tuple(stored["prefill"]), tuple(stored["decode"]))
        if kind == "learned":
            rows, tokens = learned["typical"]
            return LearnedCurves(curves, learned["error"], learned["windows"], learned["version"], (rows, tokens))
    except KeyError:
        return None
    return ProfiledCurves(curves, quick=kind == "quick_profile") if kind in ("profile", "quick_profile") else None


def loadable_to_store(loadable: Mapping[str, Loadable]) -> dict[str, Any]:
    """Returns the column's value for the models that a worker can load, by name."""
    return {
        model: {
            "change_s": round(one.change_s, 3),
            **asdict(one.memory),
            "curves": curves_to_store(ProfiledCurves(linearized(one.costs))),
        }
        for model, one in loadable.items()
    }


def loadable_from_store(stored: Mapping[str, Any]) -> dict[str, Loadable]:
    """Returns the models that a worker can load, without those whose seconds of a step cannot be read."""
    found = ((model, one, curves_from_store(one["curves"])) for model, one in stored.items())
    return {
        model: Loadable(one["change_s"], KvMemory(**{name: one[name] for name in MEMORY if name in one}), curves.curves)
        for model, one, curves in found
        if curves is not None
    }


def _kind_before_tags(stored: Mapping[str, Any]) -> str:
    """Returns the kind of a row without a tag; if its learned curves lack `typical`, its measured curves are read."""
    if "typical" in stored.get("learned", {}):
        return "learned"
    return "quick_profile" if "quick" in stored else "profile"
