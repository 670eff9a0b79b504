"""Gives each worker of this host a device, without loading torch in this process."""

import os
import shutil
import subprocess
import sys


def worker_devices(devices: str, workers: int | None, gpus: int, cpu_workers: int = 2) -> list[str]:
    """Returns each worker's device: the named ones in turn, "auto" being every GPU or else `cpu_workers` on the CPU."""
    named = [name.strip() for name in devices.split(",") if name.strip()]
    if named == ["auto"]:
        named = [f"cuda:{index}" for index in range(gpus)]
        if not named:
            return ["cpu"] * (cpu_workers if workers is None else workers)
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
