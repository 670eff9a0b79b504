from scheduling.policies.fusion.join_buffer import JoinBuffer
from scheduling.policies.fusion.length_buckets import WaitingRequest
from tests.unit.scheduling.scheduling_builders import a_request


def add(buffer: JoinBuffer, worker: str, id: str, now: float) -> None:
    buffer.add(worker, WaitingRequest(a_request(id)), now)


def test_joiners_wait_until_the_seconds_that_they_waited_are_half_of_what_a_join_costs() -> None:
    buffer = JoinBuffer()
    add(buffer, "w", "a", 0.0)
    add(buffer, "w", "b", 4.0)
    assert buffer.release({"w": 20.0}, 4.0) == {}
    assert buffer.wake_at == 7.0  # 4 · 1 + 3 · 2 = 10
    assert [waiting.request.id for waiting in buffer.release({"w": 20.0}, 7.0)["w"]] == ["a", "b"]
    assert len(buffer) == 0


def test_the_first_group_to_have_waited_enough_sets_the_time_to_wake() -> None:
    buffer = JoinBuffer()
    for worker in ("slow", "fast", "slower"):
        add(buffer, worker, worker, 0.0)
    buffer.release({"slow": 20.0, "fast": 4.0, "slower": 40.0}, 0.0)
    assert buffer.wake_at == 2.0


def test_a_request_that_is_removed_is_buffered_no_more() -> None:
    buffer = JoinBuffer()
    for worker, name in (("w", "a"), ("w", "b"), ("v", "c")):
        add(buffer, worker, name, 0.0)
    assert [buffer.remove(name) is not None for name in ("b", "c", "c")] == [True, True, False]
    assert [(worker, waiting.request.id) for worker, waiting in buffer] == [("w", "a")]


def test_where_a_join_costs_nothing_no_request_is_buffered() -> None:
    buffer = JoinBuffer()
    add(buffer, "w", "a", 0.0)
    assert list(buffer.release({"w": 0.0}, 0.0)) == ["w"]


def test_a_request_that_can_expect_no_company_joins_at_once_and_waits_again_once_others_come_often() -> None:
    buffer = JoinBuffer()
    for name, at in (("first", 0.0), ("late", 8.0)):
        add(buffer, "w", name, at)
        buffer.release({"w": 1.0}, at)
    assert len(buffer) == 0  # 8 s between the two: the second one took the first with it
    add(buffer, "w", "lonely", 20.0)
    assert list(buffer.release({"w": 1.0}, 20.0)) == ["w"]
    for turn in range(5):  # the mean gap falls from 4 s to 1.02
        at = 20.1 + 0.1 * turn
        add(buffer, "w", f"often{turn}", at)
        assert list(buffer.release({"w": 1.0}, at)) == ["w"]
    add(buffer, "w", "waits", 20.6)
    assert buffer.release({"w": 1.0}, 20.6) == {}
