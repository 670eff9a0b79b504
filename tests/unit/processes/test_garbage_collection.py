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
class Node:
    def __init__(self):
        self.itself, self.size = self, [0] * 10

limit_garbage_collection()
most = 0
for _ in range(40):
    nodes = [Node() for _ in range(50_000)]  # cycles that live long enough to count as old
    del nodes
    most = max(most, len(gc.get_objects()))
print(most)
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
def test_reference_cycles_are_collected_before_they_are_many():
    (most,) = said_by(LEAKS)
    assert most < 1_500_000  # of the six million that were made
