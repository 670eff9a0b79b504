"""A job is judged by the work that is left and by the jobs that have ended before it; feasible ones should be kept."""

from benchmarks.mixed.kept_windows import JudgedWindow, WindowedJob, judged, share_kept, windowed_jobs
from scheduling.simulation.trace import SimulatedAnswer, Trace

JOBS = windowed_jobs(8, lines_per_s=5.0, seed=1)


def trace_of(jobs: list[WindowedJob], took_s: float) -> Trace:
    requests = [line.request for job in jobs for line in job.lines]
    ends = {one.id: one.arrived_at + took_s for one in requests}
    return Trace({one.id: SimulatedAnswer(one.id, one.arrived_at, 0.0, ends[one.id], 1, 1, "w0") for one in requests})


def test_jobs_have_their_own_lines_with_their_deadline() -> None:
    requests = [line.request for job in JOBS for line in job.lines]
    assert len({one.id for one in requests}) == len(requests)
    for job in JOBS:
        assert {(one.tenant, one.job, one.arrived_at) for one in (line.request for line in job.lines)} == {
            (job.tenant, job.id, job.at)
        }
        assert {line.request.deadline_at for line in job.lines} == {job.at + job.window_s}


def test_jobs_that_still_run_make_a_job_late() -> None:
    first, *_, last = judged(JOBS, trace_of(JOBS, 1e6))
    alone = next(judged([JOBS[-1]], trace_of(JOBS, 1e6)))
    assert last.feasible_s > alone.feasible_s
    assert first.took_s == last.took_s == 1e6


def test_only_feasible_jobs_count_as_kept_or_lost() -> None:
    jobs = [
        JudgedWindow(10.0, feasible_s, took_s)
        for feasible_s, took_s in ((9.0, 8.0), (10.0, 11.0), (11.0, 9.0), (12.0, 13.0))
    ]
    figures = share_kept(jobs)
    assert (figures["jobs"], figures["feasible"], figures["feasible_kept"], figures["others_kept"]) == (4, 2, 1, 1)
    assert figures["share_kept"] == 0.5
