"""The pace of the lab in the background: it computes for a moment and sleeps for the rest of its share of a core."""

from threading import Event

from tasks.training.shadow_policy import BURST_S, Pace


class NotedWaits(Event):
    """An event that nobody waits for in earnest: it notes the seconds, and is set by the third wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        if len(self.waits) == 3:
            self.set()
        return self.is_set()


def test_a_computation_sleeps_nine_times_as_long_as_it_computes_and_ends_when_told() -> None:
    stopping = NotedWaits()
    goes_on = Pace(stopping, share=0.1)
    while goes_on():
        sum(range(1000))
    assert len(stopping.waits) == 3
    assert min(stopping.waits) >= 9 * BURST_S


def test_a_short_computation_is_not_interrupted() -> None:
    stopping = NotedWaits()
    assert Pace(stopping)()
    assert stopping.waits == []
