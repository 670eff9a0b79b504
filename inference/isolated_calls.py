"""Calls a function in a process of its own, within bounds of CPU time and memory.

It is for work whose cost depends on a client's input and which native code does in one call that no thread can end. A
template process loads the function's data once; each call forks it, which takes some 3 ms. CPU time is limited instead
of elapsed time, so that a busy machine ends no call. Green threads run on while one of them waits for a call.
"""

import os
import resource
import signal
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from socket import SHUT_WR, recv_fds, send_fds, socket, socketpair
from threading import BoundedSemaphore, Lock
from weakref import finalize

from inference.engine_errors import TokenizerAway, TooExpensive

# The bytes that one call may take: a large schema takes 40 MB, a tokenizer 100 MB. Not tuned otherwise.
MOST_MEMORY_BYTES = 2**30
AT_ONCE = 2  # this many calls run at a time, so that cores stay free for the rest of the service; not tuned
# Longest wait for a call's answer: about what the allowed CPU time takes on a machine that is ten times overloaded.
ANSWER_WITHIN_S = 20.0
OUR_MODULES = str(Path(__file__).parents[1])
LENGTH = struct.Struct("!Q")
SECONDS = struct.Struct("!d")
BEGUN, ANSWERED = b".", b"+"  # the process sends BEGUN before it reads the text, and ANSWERED in front of the answer


class IsolatedCalls:
    """Calls one function, `str` to `str`, in forked processes; `maker` (module:name) makes it from `given`."""

    def __init__(self, maker: str, given: str = "", answer_within_s: float = ANSWER_WITHIN_S) -> None:
        self._maker, self._given, self._answer_within_s = maker, given, answer_within_s
        self._template: socket | None = None
        self._starting = Lock()
        self._free = BoundedSemaphore(AT_ONCE)
        self._turns: defaultdict[str, Lock] = defaultdict(Lock)

    def call(self, text: str, cpu_s: float, caller: str = "") -> str:
        """Returns the function's answer; raises TooExpensive, or TokenizerAway on a busy machine.

        Each caller has one call at a time, so that a caller with many calls delays no other.
        """
        with self._turns[caller], self._free:
            answer = self._ask(text, cpu_s)
            if answer is None:
                answer = self._ask(text, cpu_s)
        if answer is None:
            raise RuntimeError(f"the template of {self._maker} ends by itself; its traceback is in this process's log")
        if not answer:
            raise TooExpensive(cpu_s)
        return answer.removeprefix(ANSWERED).decode()

    def _ask(self, text: str, cpu_s: float) -> bytes | None:
        """Returns the answer; it is empty if the process was ended early, and None if the template had been killed."""
        ours, theirs = socketpair()
        with ours:
            with theirs:
                self._fork(theirs, cpu_s)
            ours.settimeout(self._answer_within_s)
            try:
                if not ours.recv(1):
                    return None
                ours.sendall(text.encode())
                ours.shutdown(SHUT_WR)
                return _read_all(ours)
            except (BrokenPipeError, ConnectionResetError):
                return None
            except TimeoutError as error:
                raise TokenizerAway(
                    f"no answer from a process of its own within {self._answer_within_s:g} s"
                ) from error

    def _fork(self, theirs: socket, cpu_s: float) -> None:
        """Lets the template fork a process for this socket; starts a template if there is none."""
        with self._starting:
            if self._template is not None:
                try:
                    send_fds(self._template, [SECONDS.pack(cpu_s)], [theirs.fileno()])
                    return
                except OSError:  # the template was killed
                    self._template.close()
            self._template = self._start()
            send_fds(self._template, [SECONDS.pack(cpu_s)], [theirs.fileno()])

    def _start(self) -> socket:
        ours, theirs = socketpair()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([OUR_MODULES, *filter(None, sys.path)])}
        with theirs:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-m", __name__, self._maker, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=(theirs.fileno(),),
            )
        finalize(self, _end, ours, process)
        given = self._given.encode()
        ours.sendall(LENGTH.pack(len(given)) + given)
        return ours


def _end(template: socket, process: subprocess.Popen[bytes]) -> None:
    template.close()
    process.wait()


def _read_all(connection: socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(2**16), b""))


def _read(connection: socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = connection.recv(size - len(found))
        if not piece:
            sys.exit()
        found += piece
    return found


def serve_template(maker: str, parent: socket) -> None:
    """Makes the function, then forks a process for each socket that the parent sends, until the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # leaves no zombies
    parent.setblocking(True)  # sockets of green threads do not block
    module, _, name = maker.partition(":")
    given = _read(parent, *LENGTH.unpack(_read(parent, LENGTH.size))).decode()
    function = getattr(import_module(module), name)(given)
    while True:
        asked, descriptors, _, _ = recv_fds(parent, SECONDS.size, 1)
        if not asked:
            return
        with socket(fileno=descriptors[0]) as caller:
            if os.fork() == 0:
                parent.close()
                caller.setblocking(True)
                _answer(function, caller, *SECONDS.unpack(asked))


def _answer(function: Callable[[str], str], caller: socket, cpu_s: float) -> None:
    """Answers one call and ends the process; the kernel ends it once it has used its CPU time."""
    try:
        caller.sendall(BEGUN)
        text = _read_all(caller).decode()
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        answer = function(text).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        caller.sendall(ANSWERED + answer)
    except MemoryError:
        pass
    finally:
        os._exit(0)


if __name__ == "__main__":
    serve_template(sys.argv[1], socket(fileno=int(sys.argv[2])))
