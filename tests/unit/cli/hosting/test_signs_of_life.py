"""Silence is measured in the supervisor's own time."""

from cli.hosting.signs_of_life import START_WITHIN_S, Silence

BOUND_S = 10.0


class Signs:
    """Signs of life that the test gives."""

    def __init__(self) -> None:
        self.came = False

    def heard(self) -> bool:
        heard, self.came = self.came, False
        return heard

    def close(self) -> None:
        """Does nothing."""


def test_a_process_is_silent_for_too_long_once_its_bound_has_passed_since_its_last_sign() -> None:
    signs = Signs()
    silence = Silence(signs, BOUND_S, start_within_s=1.0)
    signs.came = True
    assert silence.too_long(100.0) is None
    assert silence.too_long(100.0 + BOUND_S) is None
    assert silence.too_long(100.5 + BOUND_S) == BOUND_S + 0.5
    signs.came = True
    assert silence.too_long(200.0) is None


def test_a_silent_process_that_waits_for_a_cpu_is_starved_and_not_frozen() -> None:
    signs, waits = Signs(), {1: 50.0, 2: 0.0}
    silence = Silence(signs, BOUND_S, start_within_s=1.0, cpu_waits=lambda: dict(waits))
    signs.came = True
    silence.too_long(100.0)
    assert silence.too_long(102.0) is None
    waits |= {1: 59.0, 2: 8.0, 3: 500.0}  # the third thread is new
    assert silence.too_long(119.0) is None
    assert silence.too_long(119.5) == 19.5
    signs.came = True
    assert silence.too_long(120.0) is None
    assert silence.too_long(130.5) is not None  # what it waited before does not count


def test_before_its_first_sign_a_process_may_load_for_long() -> None:
    silence = Silence(Signs(), BOUND_S, start_within_s=1.0)
    assert silence.too_long(0.0) is None
    assert silence.too_long(START_WITHIN_S) is None
    assert silence.too_long(START_WITHIN_S + 1) is not None


def test_a_silence_that_begins_anew_has_its_whole_bound() -> None:
    signs = Signs()
    silence = Silence(signs, BOUND_S, start_within_s=1.0)
    signs.came = True
    silence.too_long(0.0)
    assert silence.too_long(11.0) is not None
    silence.begin_anew()
    assert silence.too_long(11.0) is None
    assert silence.too_long(21.0) is None
    assert silence.too_long(21.5) is not None
