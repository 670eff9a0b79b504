"""The time for which a process waited for a CPU, read of real processes."""

import os
import signal
import subprocess
import sys
import time

import pytest

from cli.hosting.cpu_waits import cpu_waits

BUSY = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(flush=True)\nwhile True: pass"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how long threads waited")
def test_processes_that_share_a_cpu_wait_for_it_and_a_stopped_one_does_not() -> None:
    commands = ((sys.executable, "-c", code) for code in (PARENT, BUSY))
    one, other = (subprocess.Popen(one, stdout=subprocess.PIPE, start_new_session=True) for one in commands)
    try:
        for process in (one, other):
            assert process.stdout is not None
            process.stdout.readline()
        began, before = time.monotonic(), cpu_waits(one.pid)
        assert len(before) == 2  # the parent and its child
        while max(waited_s - before[thread] for thread, waited_s in cpu_waits(one.pid).items()) < 0.2:
            assert time.monotonic() < began + 60
        other.send_signal(signal.SIGSTOP)
        os.waitpid(other.pid, os.WUNTRACED)
        assert cpu_waits(other.pid) == cpu_waits(other.pid) != {}
    finally:
        for process in (one, other):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    assert cpu_waits(one.pid) == {}
