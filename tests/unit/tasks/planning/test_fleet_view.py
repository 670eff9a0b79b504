from dataclasses import replace

from models.planning.batch_claims import Claim
from models.planning.live_fleet import OpenBatch
from models.registered_workers import RegisteredWorker
from scheduling.costs import ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.policy import Assignment
from scheduling.request import Request, RowLength
from scheduling.worker_facts import Loadable, WorkerFacts, WorkerReport
from tasks.planning.fleet_view import FleetView, with_estimates, work_after_change

CURVES = ServingCurves((0, 0, 0, 1.0), (0, 0.5, 0, 0))  # a second a prefill, half a second a row and iteration
FACTS = WorkerFacts("w1", "small", "cpu", KvMemory(1000, 1))
LIVE = RegisteredWorker(FACTS)


def request(id: str, predicted: int = 10, generated: int = 0) -> Request:
    return Request(id, 0.0, 5, 20, predicted, predicted, generated=generated)


def open_batch(id: int = 1, *ids: str, joins: bool = False, started_at: float | None = 0.0, progress: int = 0):
    return OpenBatch(id, "w1", joins, 4.0, started_at, progress, ids)


def fleet_with(*batches: OpenBatch, requests: tuple[Request, ...] = ()) -> FleetView:
    fleet = FleetView()
    for batch in batches:
        mine = tuple(r for r in requests if r.id in batch.request_ids)
        fleet.add([Claim(batch.id, Assignment("w1", mine, joins=batch.joins))])
    fleet.update(list(batches))
    return fleet


def described(fleet: FleetView, now: float, lookahead_s: float = 0.0):
    return fleet.workers([LIVE], lambda worker: CURVES, now, lookahead_s)["small"][0]


def test_a_worker_that_changes_its_model_is_one_of_the_next_model_once_its_batches_have_ended():
    large = Loadable(5.0, KvMemory(600, 2), CURVES)
    loadable = {"small": Loadable(1.0, LIVE.memory, CURVES), "large": large}
    live = RegisteredWorker(replace(FACTS, loadable=loadable), wanted_model="large")
    (worker,) = FleetView().workers([live], lambda worker: CURVES, 0.0, 0.0)["large"]
    assert (worker.model, worker.changing, worker.memory, worker.loadable) == (
        "large",
        True,
        large.memory,
        live.loadable,
    )
    busy = fleet_with(open_batch(1, "a", joins=True), requests=(request("a"),))
    (worker,) = busy.workers([live], lambda worker: CURVES, 0.0, 0.0)["small"]
    assert (worker.model, worker.changing, worker.memory, len(worker.rows)) == ("large", True, LIVE.memory, 1)
    (worker,) = FleetView().workers([replace(live, wanted_model="small")], lambda worker: CURVES, 0.0, 0.0)["small"]
    assert not worker.changing


def test_an_answer_waits_for_the_change_to_its_model_and_for_what_runs_before_it():
    large = Loadable(5.0, KvMemory(600, 2), CURVES)
    live = RegisteredWorker(replace(FACTS, loadable={"small": Loadable(1.0, LIVE.memory, CURVES), "large": large}))
    changing = FleetView().workers([replace(live, wanted_model="large")], lambda worker: CURVES, 0.0, 0.0)
    (work,) = FleetView().present_work(changing["large"], {"w1": CURVES})
    assert (work.worker.model, work.loads_s) == ("large", 5.0)
    joined = fleet_with(open_batch(1, "a", joins=True), requests=(request("a"),))
    fleets = (FleetView(), joined, fleet_with(open_batch(1)))
    for fleet, loads_s in zip(fleets, (5.0, 5.0 + 5.0, 5.0 + 2.5), strict=True):
        (worker,) = fleet.workers([live], lambda worker: CURVES, 1.5, 0.0)["small"]
        (work,) = work_after_change([worker], "large")
        assert (work.worker.model, work.worker.memory, work.loads_s) == ("large", large.memory, loads_s)
        assert fleet.present_work([worker], {"w1": CURVES})[0].loads_s == 0.0
    assert work_after_change([worker], "unknown") == []


def test_what_running_rows_share_counts_as_memory_until_they_have_ended():
    sharing = replace(LIVE, report=WorkerReport(shared_tokens=30))
    for open_batches, tokens in (((open_batch(1, "a", joins=True),), 1030), ((), 1000)):
        fleet = fleet_with(*open_batches, requests=(request("a"),))
        (worker,) = fleet.workers([sharing], lambda worker: CURVES, 0.0, 0.0)["small"]
        assert worker.memory.capacity_tokens == tokens


def test_a_batch_that_has_not_begun_takes_its_whole_estimate():
    worker = described(fleet_with(open_batch(1), open_batch(2, started_at=None)), now=1.0)
    assert (worker.queued, worker.busy_s) == (2, 3.0 + 4.0)


def test_a_worker_whose_only_batch_ends_soon_counts_as_idle():
    assert described(fleet_with(open_batch()), now=3.8, lookahead_s=0.25).idle
    assert not described(fleet_with(open_batch()), now=3.5, lookahead_s=0.25).idle


def test_a_worker_that_was_just_given_a_short_batch_gets_the_next_one_ahead():
    assert described(fleet_with(open_batch(started_at=None)), now=0.0, lookahead_s=5.0).idle


def test_a_worker_that_has_its_next_batch_already_does_not_count_as_idle():
    assert not described(fleet_with(open_batch(1), open_batch(2, started_at=None)), now=3.9, lookahead_s=0.25).idle


def test_rows_that_joined_have_the_tokens_of_the_last_heartbeat_and_those_that_are_estimated_since():
    requests = (request("a"), request("b", generated=3))

    def generated(progress: int, heartbeat_age_s: float, now: float = 2.0) -> list[int]:
        told = fleet_with(open_batch(1, "a", "b", joins=True, progress=progress), requests=requests)
        live = replace(LIVE, heartbeat_age_s=heartbeat_age_s)
        (worker,) = told.workers([live], lambda worker: CURVES, now, 0.0)["small"]
        assert worker.queued == 0
        return [row.generated for row in worker.rows]

    # the longest row takes 10 iterations in 4 seconds by the estimate, and began 2 seconds ago
    assert generated(progress=6, heartbeat_age_s=0.0) == [6, 9]
    assert generated(progress=6, heartbeat_age_s=0.4) == [7, 10]
    assert generated(progress=0, heartbeat_age_s=3.0) == [5, 8]
    assert generated(progress=1, heartbeat_age_s=0.0) == [1, 4]  # it is slower than estimated
    assert generated(progress=0, heartbeat_age_s=9.0, now=9.0) == [10, 13]  # a heartbeat is late
    assert generated(progress=0, heartbeat_age_s=0.4, now=-0.1) == [0, 3]  # it began after `now` was read


def test_the_workers_own_prediction_of_a_row_takes_the_place_of_the_one_made_at_its_arrival():
    requests = (request("a"), request("b"))
    fleet = fleet_with(open_batch(1, "a", "b", joins=True, progress=6), requests=requests)
    telling = replace(LIVE, report=WorkerReport(row_lengths={"a": RowLength(4, 15, 18), "ended": RowLength(4, 9, 9)}))
    (worker,) = fleet.workers([telling], lambda worker: CURVES, 0.5, 0.0)["small"]
    assert [row.generated for row in worker.rows] == [6, 6]
    assert [row.request for row in worker.rows] == [
        replace(request("a"), predicted=15, predicted_upper=18, predicted_at=4),
        request("b"),
    ]
    started_again = fleet.workers([LIVE], lambda worker: CURVES, 0.5, 0.0)["small"][0]
    assert [row.request for row in started_again.rows] == [*requests]


def test_what_is_not_open_any_more_has_ended_and_is_reported_once():
    fleet = fleet_with(open_batch(1), open_batch(2))
    assert list(fleet.update([open_batch(2)])) == [1]
    assert list(fleet.update([open_batch(2)])) == []


def test_batches_of_an_earlier_planner_are_known_once_inherited():
    fleet = FleetView()
    batch = open_batch(7, "a", joins=True, progress=2)
    assert fleet.unknown([batch]) == [7]
    fleet.inherit([batch], {7: [request("a")]})
    fleet.update([batch])
    assert [row.request.id for row in described(fleet, now=0.0).rows] == ["a"]
    assert list(fleet.update([])) == [7]


def test_an_assignment_without_an_estimate_gets_one_beside_the_running_rows():
    fleet = fleet_with(open_batch(1, "a", joins=True), requests=(request("a"),))
    worker = described(fleet, now=0.0)
    joiners = Assignment("w1", (request("b", predicted=4), request("c", predicted=8)), joins=True)
    kept = Assignment("w1", (request("d"),), estimated_s=9.0)
    # a second for the prefill, then 8 iterations of 3 rows at half a second a row
    assert [a.estimated_s for a in with_estimates([joiners, kept], [worker])] == [1.0 + 8 * 3 * 0.5, 9.0]
