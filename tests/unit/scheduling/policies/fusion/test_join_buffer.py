from scheduling.policies.fusion.join_buffer import JoinBuffer
from scheduling.policies.fusion.length_buckets import WaitingRequest
from tests.unit.scheduling.scheduling_builders import a_request


def hold(holding: JoinBuffer, worker: str, id: str, now: float) -> None:
    holding.hold(worker, WaitingRequest(a_request(id)), now)


def test_joiners_wait_until_the_seconds_that_they_waited_are_half_of_the_price() -> None:
    holding = JoinBuffer()
    hold(holding, "w", "a", 0.0)
    hold(holding, "w", "b", 4.0)
    assert holding.release({"w": 20.0}, 4.0) == {}
    assert holding.wake_at == 7.0  # 4 · 1 + 3 · 2 = 10
    assert [waiting.request.id for waiting in holding.release({"w": 20.0}, 7.0)["w"]] == ["a", "b"]
    assert len(holding) == 0


def test_the_first_group_to_have_waited_enough_sets_the_alarm() -> None:
    holding = JoinBuffer()
    for worker in ("slow", "fast", "slower"):
        hold(holding, worker, worker, 0.0)
    holding.release({"slow": 20.0, "fast": 4.0, "slower": 40.0}, 0.0)
    assert holding.wake_at == 2.0


def test_who_is_let_go_is_held_no_more() -> None:
    holding = JoinBuffer()
    for worker, name in (("w", "a"), ("w", "b"), ("v", "c")):
        hold(holding, worker, name, 0.0)
    assert [holding.let_go(name) is not None for name in ("b", "c", "c")] == [True, True, False]
    assert [(worker, waiting.request.id) for worker, waiting in holding] == [("w", "a")]


def test_where_a_join_costs_nothing_nobody_waits() -> None:
    holding = JoinBuffer()
    hold(holding, "w", "a", 0.0)
    assert list(holding.release({"w": 0.0}, 0.0)) == ["w"]
