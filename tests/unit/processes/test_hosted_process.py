import subprocess
import sys

LOOKS = """
import gc, sqlalchemy
from processes.hosted_process import freeze_startup_objects
loaded = len(gc.get_objects())
freeze_startup_objects()
print(loaded, len(gc.get_objects()))
"""


def test_what_was_loaded_is_not_looked_at_again():
    said = subprocess.run([sys.executable, "-c", LOOKS], check=True, capture_output=True, text=True, timeout=60).stdout
    loaded, looked_at = map(int, said.split())
    assert looked_at < loaded / 100
