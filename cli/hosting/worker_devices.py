"""Gives each worker of this host a device, without loading torch in this process."""

import os
import shutil
import subprocess
import sys

# From this size on one worker is started on a CPU, because two hold the weights twice and read them twice a step. With
# 135 million parameters on two cores, two workers answer 1.2 times as many requests as one, in 0.7 of the time
# (docs/results/real_model.md); larger models were not measured.
ONE_WORKER_PARAMETERS = 500_000_000


def cpu_workers(parameters: int) -> int:
    """Returns how many workers a CPU gets for a model of this size."""
    return 1 if parameters >= ONE_WORKER_PARAMETERS else 2


def worker_devices(devices: str, workers: int | None, gpus: int, on_cpu: int = 2) -> list[str]:
    """Returns each worker's device: the named ones in turn, "auto" being every GPU or else `on_cpu` times the CPU."""
    named = [name.strip() for name in devices.split(",") if name.strip()]
    if named == ["auto"]:
        named = [f"cuda:{index}" for index in range(gpus)]
        if not named:
            return ["cpu"] * (on_cpu if workers is None else workers)
    count = len(named) if workers is None else workers
    return [named[index % len(named)] for index in range(count)]


def gpu_count() -> int:
    """Returns how many GPUs torch can use; it asks another process, and only where `nvidia-smi` is installed."""
    return 0 if shutil.which("nvidia-smi") is None else cuda_devices()


def cuda_devices() -> int:
    """Returns how many CUDA devices torch can use; it asks another process, which takes seconds."""
    script = "import torch; print(torch.cuda.device_count())"
    answer = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True)  # noqa: S603
    return int(answer.stdout) if answer.returncode == 0 else 0


def threads_each(workers: int) -> int:
    """Returns the CPU threads of each worker: the cores that this process may use, divided by the workers."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores // max(1, workers))
