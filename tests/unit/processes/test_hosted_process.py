import pytest

from processes.hosted_process import HostedProcess


class Noted:
    """A part that notes when it is started and stopped."""

    def __init__(self, name: str, noted: list[str]) -> None:
        self._name, self._noted = name, noted

    def start(self) -> None:
        self._noted.append(f"start {self._name}")

    def stop(self) -> None:
        self._noted.append(f"stop {self._name}")


def test_parts_start_in_their_order_and_stop_in_reverse_order(monkeypatch: pytest.MonkeyPatch):
    noted: list[str] = []
    # it would change the garbage collection of the tests that come after this one
    monkeypatch.setattr("processes.hosted_process.limit_garbage_collection", lambda: noted.append("limited"))
    process = HostedProcess([Noted("a", noted), Noted("b", noted)], on_stopped=lambda: noted.append("stopped"))
    process.start()
    process.stop()
    assert noted == ["start a", "start b", "limited", "stop b", "stop a", "stopped"]
