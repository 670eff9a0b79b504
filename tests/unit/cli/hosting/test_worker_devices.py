"""Which device each worker gets."""

import pytest

from cli.hosting.worker_devices import cpu_workers, threads_each, worker_devices


@pytest.mark.parametrize(
    ("devices", "workers", "gpus", "expected"),
    [
        ("auto", None, 0, ["cpu", "cpu"]),
        ("auto", 3, 0, ["cpu"] * 3),
        ("auto", None, 2, ["cuda:0", "cuda:1"]),
        ("auto", 3, 2, ["cuda:0", "cuda:1", "cuda:0"]),
        ("auto", 0, 2, []),
        ("cuda:1, cpu", None, 4, ["cuda:1", "cpu"]),
        ("cuda:1", 2, 4, ["cuda:1", "cuda:1"]),
    ],
)
def test_each_worker_gets_a_device(devices: str, workers: int | None, gpus: int, expected: list[str]) -> None:
    assert worker_devices(devices, workers, gpus) == expected


def test_more_workers_than_cores_get_one_thread_each() -> None:
    assert threads_each(10_000) == 1


def test_a_cpu_gets_a_second_worker_unless_the_models_weights_are_large() -> None:
    assert [cpu_workers(parameters) for parameters in (0, 700_000, 134_515_008, 1_240_000_000)] == [2, 2, 2, 1]
