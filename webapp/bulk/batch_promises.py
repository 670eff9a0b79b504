"""Tells clients what to expect of a batch, from some of its lines: tokens, end, and whether that is in its window."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy.orm import Session, sessionmaker

from inference.engine_errors import TokenizerAway
from models.bulk import stored_files
from models.bulk.bulk_feed import NewLine
from models.bulk.bulk_outlook import BulkOutlook, JobOutlook
from models.bulk.bulk_tables import BulkJob, BulkStatus, StoredFile
from models.connections.session import in_session
from models.new_requests import NewRequest
from models.operations.promise_book import in_time
from models.planning.response_time_estimate import ResponseTimeEstimate
from models.promise_tables import StoredPromise
from models.request_predictions import scoped_application
from protocol.bulk.bulk_schemas import LONGEST_WINDOW_S, BatchMagnus
from protocol.bulk.request_lines import MISMATCHED_URL, LineReader
from protocol.client_errors import InvalidRequest
from protocol.responses.response_objects import ShownPromise
from scheduling.sharing.background.deadlines import Work

# How many lines of a new file are checked, from how many places in it, and for how many CPU seconds at most, because
# other calls wait meanwhile. With a hundred lines, the standard error of the mean length is a tenth of the lengths'
# standard deviation. Not tuned.
SAMPLED_LINES, SAMPLED_CHUNKS, SAMPLED_FOR_S = 100, 10, 0.5
MINUTE_S, HOUR_S = 60, 3600


@dataclass(frozen=True)
class CheckedLines:
    """Some lines of a file that were checked, and the work of all its lines if they are like the checked ones."""

    checked: Sequence[NewLine]
    work: Work


def check_some_lines(
    lines: Iterable[tuple[int, bytes]], of_lines: int, reader: LineReader, lengths: ResponseTimeEstimate
) -> CheckedLines:
    """Checks some lines, each with its number, and estimates the work of all `of_lines` lines of their file."""
    until, checked, requests = time.thread_time() + SAMPLED_FOR_S, list[NewLine](), list[NewRequest]()
    for number, data in lines:
        try:
            checked.append(reader.read(number, data))
        except TokenizerAway:  # tokens cannot be counted until it is back
            break
        requests += checked[-1].requests
        time.sleep(0)  # other calls may run
        if time.thread_time() > until:
            break
    times = of_lines / max(1, len(checked))
    answers = [_predicted(one, lengths) for one in requests]
    prompts = sum(one.prompt_tokens for one in requests)
    return CheckedLines(checked, Work(len(requests), prompts, sum(answers), max(answers, default=0)).scaled(times))


def refuse_another_endpoint(checked: Sequence[NewLine]) -> None:
    """Raises InvalidRequest if all these lines name another endpoint than their batch; a few such lines do no harm."""
    errors = [line.error or {} for line in checked]
    if errors and all(error.get("code") == MISMATCHED_URL for error in errors):
        raise InvalidRequest(errors[0]["message"], param="endpoint", code=MISMATCHED_URL)


def _predicted(one: NewRequest, lengths: ResponseTimeEstimate) -> int:
    application = scoped_application(one.tenant, one.application)
    return round(lengths.answer_tokens(application, one.input_tokens, one.limit_tokens) or one.limit_tokens)


def spread_lines(sessions: sessionmaker[Session], file: StoredFile) -> Iterator[tuple[int, bytes]]:
    """Yields some lines of a file with their numbers, evenly spread over it; holds no connection meanwhile."""
    firsts = in_session(sessions, stored_files.first_lines)(file.id)
    for first in firsts[:: math.ceil(len(firsts) / SAMPLED_CHUNKS) or 1]:
        chunk = in_session(sessions, stored_files.next_chunk)(file.id, first - 1)
        lines = [] if chunk is None else list(enumerate(chunk.data.removesuffix(b"\n").split(b"\n"), first))
        lines = [line for line in lines if line[1].strip()]
        yield from lines[:: math.ceil(len(lines) * min(len(firsts), SAMPLED_CHUNKS) / SAMPLED_LINES) or 1]


def promise_of(job: BulkJob, outlook: BulkOutlook, off_peak_at: float | None = None) -> BatchMagnus:
    """Returns the `magnus` object of a stored batch; `off_peak_at` is when the next off-peak hours begin."""
    left = Work(**job.left_work) if job.left_work else None
    left_s = (job.expires_at - outlook.now).total_seconds()
    spent_s = (outlook.now - job.created_at).total_seconds()
    waits_s = 0.0
    if job.service_tier == "off_peak" and off_peak_at is not None:
        waits_s = max(0.0, off_peak_at - outlook.now.timestamp())
    told = _told(outlook.of_job(job), left_s, spent_s, outlook.now, waits_s)
    return told.model_copy(
        update={
            "paused_at": None if job.paused_at is None else int(job.paused_at.timestamp()),
            "parent_id": job.parent_id,
            "service_tier": job.service_tier,
            "done_tokens": job.done_tokens,
            "predicted_tokens": None if left is None else job.done_tokens + left.tokens,
            "left_gpu_s": _seconds(outlook.used_s(left)),
        }
    )


def with_promise(magnus: BatchMagnus, job: BulkJob, sold: StoredPromise | None) -> BatchMagnus:
    """Returns a stored batch's fields with what its accepted quote promised, and whether that was kept."""
    if sold is None:
        return magnus
    due_at, answered = sold.promised_by, job.status is BulkStatus.completed
    kept = None if job.cancelling_at else in_time(due_at, job.ended_at, datetime.now(UTC), answered=answered)
    late = due_at is not None and magnus.eta_at is not None and magnus.eta_at > due_at.timestamp()
    told = ShownPromise(
        promised_by=None if due_at is None else due_at.timestamp(),
        probability=sold.probability,
        price=sold.price,
        kept=kept,
        at_risk=kept is None and late,
    )
    return magnus.model_copy(update={"promise": told})


def promise_of_sample(
    sampled: CheckedLines, window_s: float, outlook: BulkOutlook, forecast_s: float | None
) -> BatchMagnus:
    """Returns the `magnus` object of a dry run."""
    told = _told(outlook.of_new(forecast_s), window_s, 0.0, outlook.now)
    return told.model_copy(
        update={
            "dry_run": True,
            "predicted_tokens": sampled.work.tokens,
            "left_gpu_s": _seconds(outlook.used_s(sampled.work)),
            "checked_lines": len(sampled.checked),
        }
    )


def _seconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _told(job: JobOutlook | None, left_s: float, spent_s: float, now: datetime, waits_s: float = 0.0) -> BatchMagnus:
    """Returns the forecast of a batch that was created `spent_s` ago and whose window ends in `left_s`.

    Its lines are not served in the next `waits_s` seconds.
    """
    if job is None:
        return BatchMagnus()
    expected, feasible, earliest, warnings = job.expected, waits_s + job.feasible_s <= left_s, None, list[str]()
    if not feasible:
        earliest = window_of(spent_s + waits_s + job.feasible_s)
        remedy = f"; {earliest} is the earliest window that it should meet" if earliest else ""
        warnings.append(f"This batch is unlikely to be done when its completion window ends{remedy}.")
    return BatchMagnus(
        eta_s=round(waits_s + expected.seconds, 1),
        eta_low_s=round(waits_s + expected.low_s, 1),
        eta_high_s=round(waits_s + expected.high_s, 1),
        eta_at=round(now.timestamp() + waits_s + expected.seconds, 1),
        feasible=feasible,
        earliest_window=earliest,
        warnings=warnings,
    )


def window_of(seconds: float) -> str | None:
    """Returns the shortest completion window of at least these seconds, or None if it would be too long."""
    unit, letter = (MINUTE_S, "m") if seconds <= 2 * HOUR_S else (HOUR_S, "h")
    window = max(1, math.ceil(seconds / unit))
    return f"{window}{letter}" if window * unit <= LONGEST_WINDOW_S else None
