"""Forecasts the end of a bulk job: from the work before its end and the workers' costs, later from its own pace.

Jobs share the workers as in `scheduling.forecast.bulk_forecast`. The workers' time for other requests is not computed:
it shows in the errors of earlier forecasts, because jobs that ended are compared with the forecasts at their creation.
These errors correct the expectation and give its interval. Once a job has served a twentieth of its tokens, its pace so
far is used instead. A window is feasible from the interval's upper end on, or earlier if ended jobs kept such windows.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from models.bulk.bulk_tables import MODEL_OF_LINES, POOLING_ENDPOINTS, UNENDED, WITHIN_BUDGET, BulkJob, BulkStatus
from models.connections.sql import database_clock, text
from models.planning.live_fleet import costed_workers, live_workers
from models.planning.queue_snapshot import read_queue_snapshot
from scheduling.forecast.bulk_forecast import work_before_end
from scheduling.forecast.expectations import OTHER_SPREAD, Expectation, IntervalCalibration
from scheduling.forecast.kept_windows import KeptWindows
from scheduling.policy import Worker
from scheduling.request import Job
from scheduling.sharing.background.deadlines import MARGIN_S, Work, needed_s, used_s

PACE_FROM = 0.05  # the share of a job's tokens that must be served before its pace counts. Not tuned
SPREAD = 0.6  # spread of log(forecast) until errors are known: 1/3 to 3 times the forecast, as for single requests
RECENT_JOBS = 200  # number of ended jobs whose forecasts are judged. Not tuned
UNENDED_WORK = text(f"""
    select tenant, id, left_work, extract(epoch from expires_at - clock_timestamp())::float8 as left_s,
        {MODEL_OF_LINES} as model
    from bulk_jobs
    where {UNENDED} and status <> 'cancelling' and left_work is not null and paused_at is null
        and {WITHIN_BUDGET}
""")  # noqa: S608  # a constant
# An expired job took at least its window. Expired jobs that were paused are left out: no forecast foresees a pause.
ENDED_JOBS = text(f"""
    with lately as (
        (select * from bulk_jobs where completed_at is not null and forecast_s is not null
            order by completed_at desc limit :most)
        union all (select * from bulk_jobs where completed_at is null and expired_at is not null
            and forecast_s is not null and paused_at is null and {WITHIN_BUDGET} order by expired_at desc limit :most)
    )
    select forecast_s, completed_at is not null as kept, service_tier, expected_gpu_s, gpu_s,
        extract(epoch from coalesce(completed_at, expired_at) - created_at)::float8 as real_s,
        extract(epoch from expires_at - created_at)::float8 as window_s,
        extract(epoch from coalesce(completed_at, expired_at))::float8 as ended_at
    from lately order by ended_at desc limit :most
""")  # noqa: S608  # a constant


@dataclass(frozen=True, slots=True)
class UnendedWork:
    """The remaining work of a bulk job that goes on, the seconds until its window ends, and the model of its lines."""

    job: Job
    work: Work
    left_s: float
    model: str | None


def unended_work(connection: Connection) -> list[UnendedWork]:
    """Reads the work of all bulk jobs that go on; leaves out paused and cancelled jobs."""
    return [
        UnendedWork(Job(row.tenant, row.id), Work(**row.left_work), row.left_s, row.model)
        for row in connection.execute(UNENDED_WORK)
    ]


@dataclass(frozen=True, slots=True)
class JobOutlook:
    """The expected seconds until a job ends, and the shortest window from now on that is called feasible."""

    expected: Expectation
    feasible_s: float


@dataclass(frozen=True)
class BulkOutlook:
    """Forecasts a model's bulk jobs from its workers, the jobs' remaining work and the errors of earlier forecasts."""

    workers: Sequence[Worker]
    left: Mapping[Job, Work]
    weights: Mapping[str, float]
    calibration: IntervalCalibration
    windows: KeptWindows
    now: datetime
    costs: IntervalCalibration = field(default_factory=IntervalCalibration)  # of jobs' GPU-seconds
    spent_tenants: Collection[str] = ()  # whose budgets are spent, so that their jobs pause

    def forecast_s(self, tenant: str, job_id: str, work: Work) -> float | None:
        """Returns the seconds until this work of a job is served, or None without a worker whose costs are known."""
        if not self.workers or not work.requests:
            return None
        job = Job(tenant, job_id)
        before = work_before_end({**self.left, job: work}, job, lambda name: self.weights.get(name, 1.0))
        return needed_s(before, self.workers) + MARGIN_S

    def used_s(self, work: Work | None) -> float | None:
        """Returns the seconds of workers' time that this work takes; None if it or the workers' costs are unknown."""
        return used_s(work, self.workers) if work and work.requests and self.workers else None

    def cost_of(self, work: Work | None) -> Expectation | None:
        """Returns the GPU-seconds of a job of this work, corrected by those of ended jobs, with their interval."""
        used = self.used_s(work)
        return None if used is None else self.costs.around("waiting", used, SPREAD)

    def within_s(self, forecast_s: float | None, shares: Sequence[float]) -> list[float | None]:
        """Returns the seconds within which these shares of jobs with this forecast end; None without evidence."""
        if forecast_s is None:
            return [None for _ in shares]
        return [self.calibration.within_s("waiting", forecast_s, SPREAD, share) for share in shares]

    def of_new(self, forecast_s: float | None) -> JobOutlook | None:
        """Returns the outlook for a new job with this forecast."""
        if forecast_s is None:
            return None
        expected = self.calibration.around("waiting", forecast_s, SPREAD)
        return JobOutlook(expected, min(expected.high_s, self.windows.shortest_s(forecast_s)))

    def of_job(self, job: BulkJob) -> JobOutlook | None:
        """Returns the outlook for a stored job; None if it has ended or pauses, or its work is unknown."""
        if job.status not in (BulkStatus.validating, BulkStatus.in_progress) or not job.left_work:
            return None
        if job.paused_at or job.budget_spent or job.tenant in self.spent_tenants:
            return None
        work = Work(**job.left_work)
        forecast_s = None if job.endpoint in POOLING_ENDPOINTS else self.forecast_s(job.tenant, job.id, work)
        told = self.of_new(forecast_s)
        if job.in_progress_at is not None and job.done_tokens > PACE_FROM * (job.done_tokens + work.tokens):
            spent_s = max(0.0, (self.now - job.in_progress_at).total_seconds())
            left_s = spent_s * work.tokens / job.done_tokens
            expected = IntervalCalibration().around("running", left_s, OTHER_SPREAD)
            # a job is served slowly far from its deadline and faster near it, so that its pace overstates the time left
            return JobOutlook(expected, min(expected.high_s, told.feasible_s if told else expected.high_s))
        return told


def read_bulk_outlook(session: Session, model: str, alive_s: float) -> BulkOutlook:
    """Reads the workers of this model with a heartbeat within `alive_s`, and its jobs."""
    connection = session.connection()
    calibration, costs, windows = IntervalCalibration(), IntervalCalibration(), KeptWindows()
    for row in reversed(connection.execute(ENDED_JOBS, {"most": RECENT_JOBS}).all()):
        if row.kept and row.expected_gpu_s and row.gpu_s:
            costs.learn("waiting", row.expected_gpu_s, SPREAD, row.gpu_s, row.ended_at)
        if row.service_tier != "off_peak":  # which waits for its hours
            calibration.learn("waiting", row.forecast_s, SPREAD, row.real_s, row.ended_at)
            windows.learn(row.forecast_s, row.window_s, row.kept)
    workers = costed_workers(live_workers(connection, alive_s)).get(model, ())
    # a job whose lines are still being read may be of any model
    unended = [one for one in unended_work(connection) if one.model in (None, model)]
    snapshot = read_queue_snapshot(session)
    spent = () if snapshot is None else snapshot.decisions.spent_tenants
    left = {one.job: one.work for one in unended if one.job.tenant not in spent}
    weights = connection.execute(text("select name, weight from tenants where weight <> 1"))
    shares = {row.name: row.weight for row in weights}
    return BulkOutlook(workers, left, shares, calibration, windows, database_clock(connection), costs, spent)
