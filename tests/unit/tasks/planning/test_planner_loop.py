from tasks.planning.planner_loop import StepPacer


class Clock:
    """Stands still except while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def pacer(clock: Clock) -> StepPacer:
    return StepPacer(2.0, clock, clock.sleep)


def test_the_first_step_begins_at_once():
    clock = Clock()
    pacer(clock).wait()
    assert clock.now == 100.0


def test_the_next_step_begins_one_interval_after_the_last_one_began():
    clock = Clock()
    paced = pacer(clock)
    paced.wait()
    clock.now += 0.5  # what the step took
    paced.wait()
    assert clock.now == 102.0


def test_a_step_that_took_longer_than_the_interval_delays_nothing():
    clock = Clock()
    paced = pacer(clock)
    paced.wait()
    clock.now += 5.0
    paced.wait()
    assert clock.now == 105.0


def test_a_longer_interval_holds_for_one_step():
    clock = Clock()
    paced = pacer(clock)
    paced.wait()
    paced.lengthen(6.0)
    paced.wait()
    assert clock.now == 106.0
    paced.wait()
    assert clock.now == 108.0


def test_of_several_longer_intervals_the_longest_holds():
    clock = Clock()
    paced = pacer(clock)
    paced.wait()
    paced.lengthen(6.0)
    paced.lengthen(4.0)
    paced.lengthen(1.0)
    paced.wait()
    assert clock.now == 106.0
