from models.training_log import FinishedRequest
from processes.outcomes import OUTAGE_S, OVERLAP_S, OutcomeCursor


def finished(id: str, at: float) -> FinishedRequest:
    return FinishedRequest(id, "copy", "", "abc", 3, 3, 100, 5, 9, 7, False, at)


class Log:
    """The log's committed rows, and reads as the predictor makes them."""

    def __init__(self, after: float = 0.0) -> None:
        self.rows: list[FinishedRequest] = []
        self.cursor = OutcomeCursor(after)

    def read(self, now: float) -> list[str]:
        new = [row for row in self.rows if row.at > self.cursor.after and row.id not in self.cursor.known_ids]
        self.cursor.advance(new, now)
        return [row.id for row in new]


def test_outcomes_that_the_model_was_fitted_on_are_never_read():
    log = Log(after=100.0)
    log.rows = [finished("fitted on", 100.0), finished("new", 100.1)]
    assert log.read(now=0.0) == ["new"]
    assert log.read(now=0.5) == []


def test_only_ids_within_the_overlap_are_remembered():
    log = Log()
    for n in range(1000):
        log.rows.append(finished(f"r{n}", 100.0 + n))
        assert log.read(now=float(n)) == [f"r{n}"]
    assert len(log.cursor.known_ids) == OVERLAP_S
    assert log.cursor.after == 100.0 + 999 - OVERLAP_S


def test_what_workers_could_not_write_during_an_outage_is_read_although_newer_outcomes_were_read_first():
    log = Log()
    log.rows = [finished("before", 100.0)]
    log.read(now=0.0)
    outage_s = 10 * OVERLAP_S
    log.rows.append(finished("after the outage", 100.0 + outage_s))
    assert log.read(now=outage_s) == ["after the outage"]
    log.rows.append(finished("kept by a worker", 101.0))
    assert log.read(now=outage_s + OUTAGE_S / 2) == ["kept by a worker"]
    for n in range(20):
        assert log.read(now=outage_s + OUTAGE_S / 2 + 2.0 * n) == []
    assert log.cursor.after == 100.0 + outage_s - OVERLAP_S


def test_nothing_read_leaves_the_cursor_where_it_is():
    log = Log(after=7.0)
    log.read(now=0.0)
    assert log.cursor.after == 7.0
