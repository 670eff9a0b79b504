"""Calls in processes of their own: answers, and ends of calls that take too much CPU time or memory."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from inference.engine_errors import TokenizerAway, TooExpensive
from inference.isolated_calls import IsolatedCalls


def maker(given: str) -> Callable[[str], str]:
    """A function that counts for ever, allocates without end, fails, sleeps, names its parent, or answers."""

    def function(text: str) -> str:
        if text == "endless":
            while True:
                pass
        if text == "large":
            return "x" * 2**32
        if text == "wrong":
            raise ValueError
        if text == "asleep":
            time.sleep(5)  # longer than anybody waits, and not for ever: nobody ends a process that uses no CPU time
        if text == "parent":
            return str(os.getppid())
        return given + text

    return function


CALLS = IsolatedCalls(f"{__name__}:maker", "hello ")


@pytest.mark.parametrize("text", ["world", "", "ü" * 300_000])
def test_the_answer_is_the_functions(text):
    assert CALLS.call(text, 1.0) == "hello " + text


@pytest.mark.parametrize("text", ["endless", "large", "wrong"])
def test_a_call_without_an_answer_ends_and_the_next_one_is_answered(text):
    with pytest.raises(TooExpensive):
        CALLS.call(text, 0.05)
    assert CALLS.call("again", 1.0) == "hello again"


def test_a_call_that_gets_no_cpu_time_is_no_expensive_one():
    calls = IsolatedCalls(f"{__name__}:maker", answer_within_s=0.5)
    with pytest.raises(TokenizerAway):
        calls.call("asleep", 1.0)


def test_a_template_that_was_killed_is_started_again():
    os.kill(int(CALLS.call("parent", 1.0)), signal.SIGKILL)
    assert CALLS.call("again", 1.0) == "hello again"


def test_green_threads_go_on_while_one_of_them_waits():
    script = f"""
from gevent import monkey; monkey.patch_all()
import gevent
from inference.isolated_calls import IsolatedCalls
calls, ticks = IsolatedCalls("{__name__}:maker", "hello "), []
def tick():
    while True:
        ticks.append(1)
        gevent.sleep(0.01)
gevent.spawn(tick)
print(calls.call("world", 5.0), len(ticks) > 3)
"""
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", script]
    said = subprocess.run(command, env=os.environ | path, capture_output=True, text=True, check=False)
    assert said.stdout == "hello world True\n", said.stderr
