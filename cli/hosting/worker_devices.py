"""Which device each worker gets, found without loading torch."""

import os
import shutil
import subprocess
import sys


def worker_devices(devices: str, workers: int | None, gpus: int) -> list[str]:
    """One device a worker: the named ones or every GPU, else the CPU; `workers` None: one a GPU, or two on the CPU."""
    named = [name.strip() for name in devices.split(",") if name.strip()]
    if named == ["auto"]:
        named = [f"cuda:{index}" for index in range(gpus)]
        if not named:
            return ["cpu"] * (2 if workers is None else workers)
    count = len(named) if workers is None else workers
    return [named[index % len(named)] for index in range(count)]


def gpus() -> int:
    """GPUs that torch can use; asked of torch in another process, and only if the driver's tool is there."""
    if shutil.which("nvidia-smi") is None:
        return 0
    question = "import torch; print(torch.cuda.device_count())"
    answer = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True)  # noqa: S603
    return int(answer.stdout) if answer.returncode == 0 else 0


def threads_each(workers: int) -> int:
    """CPU threads a worker: the cores that this process may use, shared out."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores // max(1, workers))
