"""A worker's curves are read as they were stored, also those of earlier releases."""

import pytest

from models.planning.worker_costs import curves_from_store, curves_to_store, loadable_from_store, loadable_to_store
from scheduling.costs import LearnedCurves, ProfiledCurves, ServingCurves, WorkerCurves
from scheduling.kv_memory import KvMemory
from scheduling.policy import Loadable

CURVES = ServingCurves((0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 0.0, 0.5))
FITS = {"prefill": list(CURVES.prefill), "decode": list(CURVES.decode)}
LEARNED = LearnedCurves(CURVES, error=0.25, windows=10, version=3, typical=(4.0, 20.5))
JUDGED = {"error": 0.25, "windows": 10, "version": 3, "typical": [4.0, 20.5]}


@pytest.mark.parametrize("known", [None, ProfiledCurves(CURVES), ProfiledCurves(CURVES, quick=True), LEARNED])
def test_what_is_stored_is_read(known: WorkerCurves | None) -> None:
    assert curves_from_store(curves_to_store(known)) == known


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        (FITS, ProfiledCurves(CURVES)),
        (FITS | {"quick": True}, ProfiledCurves(CURVES, quick=True)),
        (FITS | {"learned": JUDGED}, LEARNED),
        (FITS | {"learned": {"error": 0.25, "version": 3}}, ProfiledCurves(CURVES)),
    ],
)
def test_rows_of_earlier_releases_are_read_by_their_keys(stored: dict[str, object], read: WorkerCurves) -> None:
    assert curves_from_store(stored) == read


@pytest.mark.parametrize(
    "stored",
    [
        FITS | {"kind": "guessed"},  # of a later release
        {"kind": "profile", "prefill": [0.0, 0.0, 0.0, 1.0]},
        {"decode": [0.0, 0.0, 0.0, 0.5]},
        {"kind": "learned"} | JUDGED,
        *[{"kind": "learned"} | FITS | {key: JUDGED[key] for key in JUDGED if key != left_out} for left_out in JUDGED],
    ],
)
def test_an_unknown_kind_and_a_row_without_the_keys_of_its_kind_are_not_known(stored: dict[str, object]) -> None:
    assert curves_from_store(stored) is None


def test_the_models_that_a_worker_can_load_are_read_as_they_were_stored() -> None:
    loadable = {
        "small": Loadable(2.5, KvMemory(1_000, 10, True, 32, 4, windowed_bytes=8, window_tokens=64), CURVES),
        "large": Loadable(20.0, KvMemory(500, 20), CURVES),
    }
    stored = loadable_to_store(loadable)
    assert loadable_from_store(stored) == loadable
    earlier = {name: value for name, value in stored["large"].items() if not name.startswith("window")}
    assert loadable_from_store(stored | {"large": earlier}) == loadable
    assert loadable_from_store(stored | {"new": stored["large"] | {"curves": {"kind": "later"}}}) == loadable
