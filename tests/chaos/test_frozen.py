"""Whatever is frozen (SIGSTOP) and stays so: its work goes on elsewhere, and what it does once thawed changes nothing.

Nobody supervises these processes, as on several hosts; what `magnus up` does about frozen ones is in
`tests/integration/processes/test_signs_of_life.py`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.chaos.breakable_service import Service

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


@contextmanager
def frozen(service: Service, name: str) -> Iterator[None]:
    """The process is frozen meanwhile, and goes on afterwards."""
    service.freeze(name)
    try:
        yield
    finally:
        service.thaw(name)


def test_a_frozen_worker_loses_its_batches_to_the_other_and_overwrites_nothing_when_it_goes_on(service: Service):
    ids = service.submit("frozen-worker", 60)
    with frozen(service, service.worker_in_the_middle_of_a_batch()):
        service.all_answered_once(ids)
    service.all_answered_once([*ids, *service.submit("thawed-worker", 20)])


def test_a_stand_by_takes_over_from_a_frozen_planner_which_then_stands_by(service: Service):
    service.programs["planner-2"] = service.programs["planner"]
    ids = service.submit("frozen-planner", 60)
    service.worker_in_the_middle_of_a_batch()
    before = leader(service)
    with frozen(service, "planner"):
        service.start("planner-2")
        service.all_answered_once([*ids, *service.submit("no-planner", 20)])  # these the frozen one never saw
        after = leader(service)
        assert after != before
    service.all_answered_once(service.submit("thawed-planner", 20))
    assert leader(service) == after
    service.running["planner-2"].terminate()
    service.running.pop("planner-2").wait()


def leader(service: Service) -> str:
    """Host and process of the planner that leads."""
    ((holder,),) = service.stage.sql("select holder from leaderships where name = 'planner'")
    return str(holder)


def test_without_beat_planner_and_predictor_go_on_by_themselves(service: Service):
    with frozen(service, "beat"):
        service.all_answered_once(service.submit("no-beat", 40))


def test_a_frozen_predictor_keeps_nothing_from_being_served(service: Service):
    with frozen(service, "predictor"):
        service.all_answered_once(service.submit("frozen-predictor", 30))
