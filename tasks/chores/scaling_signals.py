"""Computes the signals for autoscalers: the seconds of waiting work and the number of wanted workers of each model."""

from time import monotonic

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from models.operations.scaling_signals import ScalingSignal, read_demands, read_workers, write_signals
from scheduling.forecast.wanted_workers import Demand, work_s, workers_wanted

# The share of a process's time that reading the waiting requests may take. One read takes some hundredths of a second
# with 20,000 requests and some tenths with 200,000, and is then repeated less often.
READING_SHARE = 0.02
NOTHING = Demand()


class ScalingMeter:
    """Measures and stores the signals when that is due; all processes `chores` write the same row."""

    def __init__(self, engine: Engine, alive_s: float, target_s: float) -> None:
        """A worker whose heartbeat is older than `alive_s` counts as gone; `target_s` is the wanted response time."""
        self._engine, self._alive_s, self._target_s, self._due_at = engine, alive_s, target_s, 0.0

    def measure_if_due(self) -> None:
        """Computes and stores the signals, unless READING_SHARE forbids another measurement so soon."""
        began = monotonic()
        if began < self._due_at:
            return
        with Session(self._engine) as session, session.begin():
            demands, workers = read_demands(session), read_workers(session.connection(), self._alive_s)
            signals = {}
            for model in demands.keys() | workers.keys():
                demand, of_model = demands.get(model, NOTHING), workers.get(model, ())
                wanted = workers_wanted(demand, of_model, self._target_s)
                signals[model] = ScalingSignal(round(work_s(demand, of_model), 3), wanted)
            write_signals(session.connection(), signals)
        self._due_at = began + (monotonic() - began) / READING_SHARE
