"""The supervisor's arithmetic; its deeds are in tests/integration/processes/test_supervisor.py."""

from cli.hosting.supervisor import restart_delay_s


def test_restarts_slow_down_to_one_in_ten_seconds() -> None:
    assert [restart_delay_s(failures) for failures in (1, 2, 3, 7, 8, 5000)] == [0.1, 0.2, 0.4, 6.4, 10.0, 10.0]
