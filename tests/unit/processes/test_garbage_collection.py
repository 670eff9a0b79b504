"""Each case runs in a process of its own, because it changes the process's garbage collector."""

import subprocess
import sys

import pytest

HEADER = "import gc\nfrom processes.garbage_collection import limit_garbage_collection\n"
LOOKS = """
import sqlalchemy
loaded = len(gc.get_objects())
limit_garbage_collection()
print(loaded, len(gc.get_objects()))
"""
GROWS = """
limit_garbage_collection()
before = gc.get_stats()[2]["collections"]
kept = [[n] for n in range(600_000)]  # as the calls that wait, or the requests of a queue
print(gc.get_stats()[2]["collections"] - before)
"""
LEAKS = """
import time
limit_garbage_collection(full_every_s=0.2)
kept = [[n] for n in range(100_000)]
gc.collect(1)
gc.collect(1)  # old by now
kept.append(kept)
before, waits_until = len(gc.get_objects()), time.monotonic() + 60
del kept
while len(gc.get_objects()) > 50_000 and time.monotonic() < waits_until:
    time.sleep(0.05)
print(before, len(gc.get_objects()))
"""


def said_by(program: str) -> list[int]:
    """The numbers that a new process prints."""
    ran = subprocess.run([sys.executable, "-c", HEADER + program], check=True, capture_output=True, text=True)
    return [*map(int, ran.stdout.split())]


@pytest.mark.timeout(120)
def test_what_was_loaded_is_not_looked_at_again():
    loaded, looked_at = said_by(LOOKS)
    assert looked_at < loaded / 100


@pytest.mark.timeout(120)
def test_objects_that_stay_start_no_full_collection():
    assert said_by(GROWS) == [0]


@pytest.mark.timeout(120)
def test_old_reference_cycles_are_collected_later():
    before, after = said_by(LEAKS)
    assert before > 100_000
    assert after < 50_000
