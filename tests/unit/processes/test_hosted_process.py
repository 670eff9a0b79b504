from processes.hosted_process import HostedProcess


class Noted:
    """A part that notes when it is started and stopped."""

    def __init__(self, name: str, noted: list[str]) -> None:
        self._name, self._noted = name, noted

    def start(self) -> None:
        self._noted.append(f"start {self._name}")

    def stop(self) -> None:
        self._noted.append(f"stop {self._name}")


def test_parts_start_in_their_order_and_stop_in_reverse_order():
    noted: list[str] = []
    process = HostedProcess([Noted("a", noted), Noted("b", noted)], on_stopped=lambda: noted.append("stopped"))
    process.start()
    process.stop()
    assert noted == ["start a", "start b", "stop b", "stop a", "stopped"]
