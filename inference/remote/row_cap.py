"""Finds how many rows a server should have at once, from its queue, preemptions, refusals or throughput.

The cap works like TCP's congestion window: it doubles while rows fill it and get tokens without a sign of overload,
falls at such a sign, and then grows by one row at a time. So the server's own queue stays nearly empty, and requests
wait in our queue, where they can still be reordered. Reads no clock: instants and figures are arguments.
"""

from dataclasses import dataclass

START_ROWS = 8  # the cap doubles each second while rows fill it, so any small number works
HOLD_S = 10.0  # seconds after a sign of overload until the cap grows again; not tuned
WINDOW_S = 3.0  # seconds over which throughput is measured if the server does not report its queue; not tuned
# A doubled cap is kept only if throughput rises by this share. It rises far more until the server is full
# (docs/results/engines.md), and not at all afterwards.
LEAST_GAIN = 0.1
REMEASURE_S = 30.0  # seconds for which a cap found by throughput is kept; not tuned


@dataclass(frozen=True, slots=True)
class CapSigns:
    """The server's state: rows in it, rows that wait in its queue, tokens generated since the watch began.

    `preempted` and `refused` say whether the server preempted or refused a row since the last update.
    """

    rows: int
    waiting: int
    tokens: int
    preempted: bool = False
    refused: bool = False


class RowCap:
    """Finds the cap, `value`, at most `most`; `by_throughput` if the server does not report its queue.

    With `known_memory` the planner fills the server's memory by predicted lengths. A preemption then says that some
    answer outgrew its prediction, not that the server has too many rows, and rows that wait soon after it wait for
    memory. If each of them lowered the cap, vLLM would have six rows where its memory holds eight.
    """

    def __init__(self, most: int | None, by_throughput: bool, known_memory: bool = False) -> None:
        self._most, self._by_throughput, self._known_memory = most, by_throughput, known_memory
        self._memory_full_until = 0.0
        self.value = START_ROWS if most is None else min(START_ROWS, most)
        self._settled = False
        self._waited_before = False
        self._tokens = 0  # the `tokens` of the last update
        self._hold_until = 0.0
        self._window_began: float | None = None
        self._window_tokens = 0
        self._before: tuple[int, float] | None = None  # the last cap that raised throughput, and its tokens per second

    def update(self, signs: CapSigns, now: float) -> None:
        """Changes the cap after an observation of the server."""
        if self._known_memory and signs.preempted:
            self._memory_full_until = now + HOLD_S
        queued = signs.waiting > 0 and self._waited_before
        overloaded = signs.refused or (now >= self._memory_full_until and (signs.preempted or queued))
        self._waited_before = signs.waiting > 0
        silent, self._tokens = signs.tokens == self._tokens, signs.tokens
        if overloaded:
            excess = max(1, signs.waiting)
            self.value = max(1, min(self.value, signs.rows) - excess)
            self._settled, self._hold_until, self._window_began = True, now + HOLD_S, None
        elif silent or signs.rows < self.value or signs.waiting or now < self._hold_until:
            self._window_began = None
        elif self._by_throughput:
            self._measure(signs, now)
        else:
            self._grow()

    def restart(self) -> None:
        """Begins with one row, because the server failed again before it had answered any."""
        self.value, self._settled, self._before, self._window_began = 1, False, None, None

    def _grow(self) -> None:
        self.value = self.value + 1 if self._settled else 2 * self.value
        if self._most is not None:
            self.value = min(self.value, self._most)

    def _measure(self, signs: CapSigns, now: float) -> None:
        """Keeps the last growth if it raised the throughput of a whole window by LEAST_GAIN, otherwise reverts it."""
        if self._window_began is None:
            self._window_began, self._window_tokens = now, signs.tokens
            return
        if now - self._window_began < WINDOW_S:
            return
        rate = (signs.tokens - self._window_tokens) / (now - self._window_began)
        self._window_began = None
        if self._before is None or rate > (1 + LEAST_GAIN) * self._before[1]:
            self._before = (self.value, rate)
            self._grow()
        else:
            self.value, self._before = self._before[0], None
            self._settled, self._hold_until = True, now + REMEASURE_S
