"""A worker's stored serving time curves: those that it measures as it starts never replace a whole profile."""

from dataclasses import replace

import pytest

from models.leasing import worker_registration
from models.planning import live_fleet
from scheduling.costs import ProfiledCurves, ServingCurves
from tests.integration.database_stage import Stage, facts

WHOLE = ProfiledCurves(ServingCurves((1.0, 0.0, 0.0, 0.0), (2.0, 0.0, 0.0, 0.0)))
QUICK, LATER = (ProfiledCurves(ServingCurves((n, 0.0, 0.0, 0.0), (n, 0.0, 0.0, 0.0)), quick=True) for n in (3.0, 4.0))


@pytest.mark.parametrize(
    ("stored", "model", "device", "kept"),
    [
        (WHOLE, "toy", "cpu", WHOLE),
        (QUICK, "toy", "cpu", LATER),
        (WHOLE, "another", "cpu", LATER),  # the stored profile is of a model that the worker no longer serves
        (WHOLE, "toy", "cuda:0", LATER),
    ],
)
def test_a_worker_that_starts_again_keeps_its_profile(stage: Stage, stored, model, device, kept):
    with stage.database.begin() as connection:
        worker_registration.register(connection, facts(model="toy"))
        assert live_fleet.set_curves(connection, "w1", stored)
        worker_registration.register(connection, replace(facts(model=model, curves=LATER), device=device))
        (worker,) = live_fleet.live_workers(connection, alive_s=60.0)
    assert worker.curves == kept


def test_a_worker_that_measured_nothing_keeps_what_it_had(stage: Stage):
    with stage.database.begin() as connection:
        worker_registration.register(connection, facts(model="toy", curves=WHOLE))
        worker_registration.register(connection, facts(model="toy"))
        (worker,) = live_fleet.live_workers(connection, alive_s=60.0)
    assert worker.curves == WHOLE
