"""What the device is, and its two limits: the bytes that a copy moves a second, and the operations of a product."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import torch

from benchmarks.engines.__main__ import device_name
from benchmarks.engines.bandwidth_floor import seconds_of
from benchmarks.gpu.phase_plan import Part, Terms
from benchmarks.harness import Json

REPEATS = 8  # the best of them counts: a limit is what the device can do
PRODUCT_FACTORS = {"cuda": 8192, "cpu": 512}  # rows of the square factors: enough to fill a device; any more works
COPIED_BYTES = {"cuda": 2**32, "cpu": 2**27}  # several times the caches


def parts(terms: Terms) -> Iterator[Part]:
    """Name the card, and measure its limits."""
    yield "names", lambda: names(terms.device)
    yield "copy", lambda: {"bytes_per_s": copied_bytes_per_s(terms.device)}
    for dtype in ("bfloat16", "float32"):
        yield f"product in {dtype}", lambda dtype=dtype: {"flop_per_s": product_flop_per_s(terms.device, dtype)}  # type: ignore[misc]


def names(device: str) -> Json:
    """Return the names and versions that figures depend on."""
    driver = None
    if shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader"]
        driver = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    found: Json = {"name": device_name(device), "driver": driver, "torch": torch.__version__}
    for package in ("triton", "transformers", "sentence-transformers"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def copied_bytes_per_s(device: str) -> float:
    """Measure a copy on the device; bytes read and bytes written both count."""
    source = torch.randint(0, 255, (COPIED_BYTES[device],), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / min(seconds_of(lambda: target.copy_(source), REPEATS))


def product_flop_per_s(device: str, dtype: str) -> float:
    """Measure a product of two square matrices of random numbers; zeros would be multiplied faster."""
    rows = PRODUCT_FACTORS[device]
    one, other = (torch.randn(rows, rows, device=device).to(getattr(torch, dtype)) for _ in range(2))
    return 2 * rows**3 / min(seconds_of(lambda: one @ other, REPEATS))
