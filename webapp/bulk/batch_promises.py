"""Tells clients what to expect of a batch, from some lines of its file: its tokens, its end, whether in its window."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from inference.engine_errors import TokenizerAway
from models.bulk import stored_files
from models.bulk.bulk_feed import NewLine
from models.bulk.bulk_outlook import BulkOutlook, JobOutlook
from models.bulk.bulk_tables import BulkJob, StoredFile
from models.new_requests import NewRequest
from models.planning.response_time_estimate import ResponseTimeEstimate
from models.request_predictions import scoped_application
from scheduling.policies.wrapping.deadlines import Work
from webapp.bulk.bulk_schemas import LONGEST_WINDOW_S, BatchMagnus
from webapp.bulk.request_lines import LineReader

# How many lines of a new file are checked, from how many places in it, and for how many CPU seconds at most, because
# other calls wait meanwhile. With a hundred lines, the standard error of the mean length is a tenth of the lengths'
# standard deviation. Not tuned.
SAMPLED_LINES, SAMPLED_CHUNKS, SAMPLED_FOR_S = 100, 10, 0.5
MINUTE_S, HOUR_S = 60, 3600


@dataclass(frozen=True)
class CheckedLines:
    """Some lines of a file that were checked, and the work of all of its lines if they are like these."""

    checked: Sequence[NewLine]
    work: Work


def check_some_lines(
    session: Session, file: StoredFile, reader: LineReader, lengths: ResponseTimeEstimate
) -> CheckedLines:
    """Checks some lines of a file, evenly spread over it, and predicts their answers as at a submission."""
    until, checked, requests = time.thread_time() + SAMPLED_FOR_S, list[NewLine](), list[NewRequest]()
    for number, data in _spread_lines(session, file):
        try:
            checked.append(reader.read(number, data))
        except TokenizerAway:  # nothing is known of the tokens until it is back
            break
        requests += checked[-1].requests
        time.sleep(0)  # other calls may run
        if time.thread_time() > until:
            break
    times = file.lines / max(1, len(checked))
    answers = [_predicted(one, lengths) for one in requests]
    prompts = sum(one.prompt_tokens for one in requests)
    return CheckedLines(checked, Work(len(requests), prompts, sum(answers), max(answers, default=0)).scaled(times))


def _predicted(one: NewRequest, lengths: ResponseTimeEstimate) -> int:
    application = scoped_application(one.tenant, one.application)
    return round(lengths.answer_tokens(application, one.input_tokens, one.limit_tokens) or one.limit_tokens)


def _spread_lines(session: Session, file: StoredFile) -> Iterator[tuple[int, bytes]]:
    firsts = stored_files.first_lines(session, file.id)
    for first in firsts[:: math.ceil(len(firsts) / SAMPLED_CHUNKS) or 1]:
        chunk = stored_files.next_chunk(session, file.id, first - 1)
        lines = [] if chunk is None else list(enumerate(chunk.data.removesuffix(b"\n").split(b"\n"), first))
        lines = [line for line in lines if line[1].strip()]
        yield from lines[:: math.ceil(len(lines) * min(len(firsts), SAMPLED_CHUNKS) / SAMPLED_LINES) or 1]


def promise_of(job: BulkJob, outlook: BulkOutlook) -> BatchMagnus:
    """Returns the `magnus` object of a stored batch."""
    left = Work(**job.left_work) if job.left_work else None
    left_s = (job.expires_at - outlook.now).total_seconds()
    spent_s = (outlook.now - job.created_at).total_seconds()
    told = _told(outlook.of_job(job), left_s, spent_s, outlook.now)
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


def _told(job: JobOutlook | None, left_s: float, spent_s: float, now: datetime) -> BatchMagnus:
    """Returns the forecast of a batch that was created `spent_s` ago and whose window ends in `left_s`."""
    if job is None:
        return BatchMagnus()
    expected, feasible, earliest, warnings = job.expected, job.feasible_s <= left_s, None, list[str]()
    if not feasible:
        earliest = window_of(spent_s + job.feasible_s)
        remedy = f"; {earliest} is the earliest window that it should meet" if earliest else ""
        warnings.append(f"This batch is unlikely to be done when its completion window ends{remedy}.")
    return BatchMagnus(
        eta_s=round(expected.seconds, 1),
        eta_low_s=round(expected.low_s, 1),
        eta_high_s=round(expected.high_s, 1),
        eta_at=round(now.timestamp() + expected.seconds, 1),
        feasible=feasible,
        earliest_window=earliest,
        warnings=warnings,
    )


def window_of(seconds: float) -> str | None:
    """Returns the shortest completion window of at least these seconds, or None if it would be too long."""
    unit, letter = (MINUTE_S, "m") if seconds <= 2 * HOUR_S else (HOUR_S, "h")
    window = max(1, math.ceil(seconds / unit))
    return f"{window}{letter}" if window * unit <= LONGEST_WINDOW_S else None
