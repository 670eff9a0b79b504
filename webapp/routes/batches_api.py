"""/v1/batches: create, retrieve, list, change, pause, cancel. The process `chores` does the work (`tasks/chores`)."""

import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from apiflask import APIBlueprint
from flask import Response, request
from sqlalchemy.orm import Session

from models.bulk import bulk_jobs, stored_files
from models.bulk.bulk_jobs import CHANGEABLE, MOST_UNENDED, FileDeleted, TooManyJobs
from models.bulk.bulk_tables import BulkJob, BulkStatus, StoredFile
from models.connections.session import in_session
from models.new_requests import QuoteUsed
from models.promise_tables import Promise
from protocol.bulk.bulk_schemas import (
    AskedBudget,
    Batch,
    BatchList,
    BatchListQuery,
    BatchMagnus,
    ChangeBatch,
    CreateBatch,
    ResultsQuery,
    batch_of,
    window_s,
)
from protocol.bulk.result_lines import EndingJob, result_lines, results
from protocol.bulk.result_tables import csv_pieces, parquet_pieces, table_rows
from protocol.client_errors import BacklogFull, InvalidRequest, NotFound, QuoteUnusable
from protocol.requests.submission import canonical_digest, checked_key
from webapp.bulk.batch_budgets import stored_budget, with_pauses, with_usage
from webapp.bulk.batch_promises import CheckedLines, promise_of, promise_of_sample, with_promise
from webapp.bulk.batch_quotes import accepted_offer, batch_forecast_s, check_promise, checked_lines
from webapp.bulk.retried_lines import retry_of
from webapp.context.app_context import current_context
from webapp.context.auth import current_tenant
from webapp.requests.request_storing import check_tier
from webapp.routes.files_api import file_not_found, find_file
from webapp.routes.list_pages import read_page

BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")  # as `bulk_jobs.create_job` makes them
RETRY_S = 60  # batches take minutes and more; any value of that order works

api = APIBlueprint("batches", __name__, url_prefix="/v1/batches", tag="Batches")


@api.post("")
@api.input(CreateBatch)
@api.output(Batch)
@api.doc(summary="Create a batch", security="ApiKey", responses=[400, 401, 403, 404, 413, 422, 429, 503])
def create_batch(json_data: CreateBatch) -> Batch:
    """Every line of the file becomes a request that is served with capacity that others leave, until the window ends.

    A line that cannot be accepted goes to the error file and harms no other.
    """
    check_tier(current_context(), json_data.magnus.service_tier)
    tenant, key = current_tenant(), checked_key(request.headers.get("Idempotency-Key"))
    file = find_file(json_data.input_file_id)
    context, window = current_context(), window_s(json_data.completion_window)
    digest = None if key is None else canonical_digest(json_data)
    if not json_data.magnus.dry_run and (earlier := _of_key(key, digest)) is not None:
        return earlier
    offer, outlook = accepted_offer(context, json_data, tenant, time.time()), context.bulk_outlook.get()
    tier = json_data.magnus.service_tier if offer is None else offer.tier
    sampled = checked_lines(context, json_data, tenant, file)
    forecast_s = batch_forecast_s(outlook, json_data.endpoint, tenant, sampled.work)
    cost = outlook.cost_of(sampled.work)
    gpu_s = None if cost is None else cost.seconds
    if offer is not None:
        check_promise(context, offer, window, forecast_s, gpu_s, time.time())
    if json_data.magnus.dry_run:
        magnus = promise_of_sample(sampled, window, outlook, forecast_s)
        extras = json_data.magnus.model_copy(update={"service_tier": tier})
        return tried(json_data, file, sampled, with_pauses(context, magnus, tenant, file.lines, gpu_s, extras))
    new = BulkJob(
        tenant=tenant,
        endpoint=json_data.endpoint,
        input_file_id=file.id,
        lines=file.lines,
        last_line=file.last_line,
        completion_window=json_data.completion_window,
        labels=json_data.metadata,
        idempotency_key=key,
        idempotency_sha256=digest,
        service_tier=tier,
        output_expires_s=None if json_data.output_expires_after is None else json_data.output_expires_after.seconds,
        left_work=asdict(sampled.work) if sampled.work.requests else None,
        forecast_s=forecast_s,
        expected_gpu_s=outlook.used_s(sampled.work),
        budget=_budget(json_data.magnus.budget, tier),
    )
    return _created(new, None if offer is None else offer.promise)


@api.get("")
@api.input(BatchListQuery, location="query")
@api.output(BatchList)
@api.doc(summary="List batches", security="ApiKey", responses=[400, 401, 403, 429, 503])
def list_batches(query_data: BatchListQuery) -> BatchList:
    """Lists batches, newest first; `after` takes the last id of the page before."""
    page = read_page("batch", BATCH_ID, bulk_jobs.job_page, query_data.after, limit=query_data.limit)
    return BatchList.with_entries(all_shown(page.entries), has_more=page.more)


@api.get("/<id>")
@api.output(Batch)
@api.doc(summary="Retrieve a batch", security="ApiKey", responses=[401, 403, 404, 429, 503])
def retrieve_batch(id: str) -> Batch:
    """Returns state, counts and files; counts follow within a second, those of large batches within some seconds."""
    return shown(find_batch(id))


@api.post("/<id>/cancel")
@api.output(Batch)
@api.doc(summary="Cancel a batch", security="ApiKey", responses=[401, 403, 404, 429, 503])
def cancel_batch(id: str) -> Batch:
    """Cancels the lines without an answer and keeps the answers; a batch that has ended stays as it is."""
    find_batch(id)
    with current_context().sessions() as session:
        bulk_jobs.cancel_job(session, current_tenant(), id)
    return shown(find_batch(id))


@api.post("/<id>/pause")
@api.output(Batch)
@api.doc(summary="Pause a batch", security="ApiKey", responses=[400, 401, 403, 404, 429, 503])
def pause_batch(id: str) -> Batch:
    """Keeps its waiting lines from being served; those in progress end, and its window goes on."""
    return _changed(id, bulk_jobs.pause_job)


@api.post("/<id>/resume")
@api.output(Batch)
@api.doc(summary="Resume a batch", security="ApiKey", responses=[400, 401, 403, 404, 429, 503])
def resume_batch(id: str) -> Batch:
    """Lets the lines of a paused batch be served again."""
    return _changed(id, bulk_jobs.resume_job)


@api.post("/<id>")
@api.input(ChangeBatch)
@api.output(Batch)
@api.doc(summary="Change a batch", security="ApiKey", responses=[400, 401, 403, 404, 429, 503])
def change_batch(id: str, json_data: ChangeBatch) -> Batch:
    """Gives it another completion window, service tier or budget, which its waiting lines follow within seconds."""
    window, tier, asked = json_data.completion_window, json_data.service_tier, json_data.budget
    check_tier(current_context(), tier)
    if not (window or tier or asked):
        raise InvalidRequest("Give 'completion_window', 'service_tier' or 'budget'.", param="completion_window")
    job = find_batch(id)
    if asked is None and tier and job.budget is not None and job.budget["unit"] == "price":
        asked = AskedBudget(amount=job.budget["amount"], unit="price")  # it buys other GPU-seconds in another tier
    budget = _budget(asked, tier or job.service_tier)
    seconds = None if window is None else window_s(window)
    return _changed(id, partial(bulk_jobs.change_job, window=window, window_s=seconds, tier=tier, budget=budget))


@api.post("/<id>/retry")
@api.output(Batch)
@api.doc(summary="Retry a batch", security="ApiKey", responses=[400, 401, 403, 404, 422, 429, 503])
def retry_batch(id: str) -> Batch:
    """Makes a batch of the lines of an ended one that have no answer, except those that would be refused again."""
    key = checked_key(request.headers.get("Idempotency-Key"))
    context, parent = current_context(), find_batch(id)
    digest = None if key is None else hashlib.sha256(id.encode()).digest()
    if (earlier := _of_key(key, digest)) is not None:
        return earlier
    new = retry_of(context.sessions, parent, context.upload_limits, key, digest)
    made = None
    try:
        made = _created(new)
        return made
    finally:
        if made is None or made.input_file_id != new.input_file_id:  # no batch was made, or a parallel call made it
            with context.sessions() as session:
                stored_files.abandon_upload(session, new.input_file_id)


MEDIA_TYPES = {"jsonl": "application/jsonl", "csv": "text/csv", "parquet": "application/vnd.apache.parquet"}


@api.get("/<id>/results")
@api.input(ResultsQuery, location="query")
@api.doc(summary="Read a batch's results", security="ApiKey", responses=[200, 400, 401, 403, 404, 429, 503])
def read_results(id: str, query_data: ResultsQuery) -> Response:
    """Returns the lines that have ended by now, answered or not, in the order of the input."""
    job, kind = find_batch(id), query_data.format
    ending = EndingJob(job.id, job.endpoint, job.status)
    pages = bulk_jobs.pages_of_ended_lines(current_context().sessions, job.id, None)
    if kind == "jsonl":
        pieces = result_lines(ending, pages)
    else:
        rows = (row for page in results(ending, pages) for result in page for row in table_rows(result))
        pieces = csv_pieces(rows) if kind == "csv" else parquet_pieces(rows)
    named = {"Content-Disposition": f"attachment; filename={id}.{kind}"}
    return Response(pieces, mimetype=MEDIA_TYPES[kind], headers=named)


def shown(job: BulkJob) -> Batch:
    """Returns a stored batch with its forecast."""
    return all_shown([job])[0]


def all_shown(jobs: Sequence[BulkJob]) -> list[Batch]:
    """Returns stored batches with their forecasts, what they used, and their promises."""
    context = current_context()
    outlook, snapshot = context.bulk_outlook.get(), context.queue_snapshot.get()
    promises, prices = in_session(context.sessions, bulk_jobs.promises_of)(jobs), context.quotes.tier_prices
    opens_at = None if snapshot is None else snapshot.decisions.off_peak_at

    def of(job: BulkJob) -> Batch:
        used = with_usage(promise_of(job, outlook, opens_at), job, prices, snapshot)
        return batch_of(job, with_promise(used, job, promises.get(job.id)))

    return [of(job) for job in jobs]


def tried(asked: CreateBatch, file: StoredFile, sampled: CheckedLines, magnus: BatchMagnus) -> Batch:
    """Returns the batch that would be created, with the errors of its checked lines."""
    now, names = datetime.now(UTC), ("code", "message", "param")
    errors = [
        {name: line.error[name] for name in names} | {"line": line.line} for line in sampled.checked if line.error
    ]
    job = BulkJob(
        id="batch_dry_run",
        endpoint=asked.endpoint,
        input_file_id=asked.input_file_id,
        completion_window=asked.completion_window,
        labels=asked.metadata,
        status=BulkStatus.validating,
        lines=file.lines,
        completed=0,
        failed=len(errors),
        errors=errors or None,
        created_at=now,
        expires_at=now + timedelta(seconds=window_s(asked.completion_window)),
    )
    return batch_of(job, magnus)


def _budget(asked: AskedBudget | None, tier: str) -> Mapping[str, Any] | None:
    return None if asked is None else stored_budget(current_context().quotes.tier_prices, asked, tier)


def _of_key(key: str | None, digest: bytes | None) -> Batch | None:
    """Returns the batch that an earlier call with this Idempotency-Key made."""
    with current_context().sessions() as session:
        job = bulk_jobs.job_of_key(session, current_tenant(), key, digest)
    return None if job is None else shown(job)


def _created(new: BulkJob, promise: Promise | None = None) -> Batch:
    """Stores a new batch and returns it; raises BacklogFull, and NotFound for a file that was deleted meanwhile."""
    try:
        with current_context().sessions() as session:
            job = bulk_jobs.create_job(session, new, window_s(new.completion_window), promise)
    except TooManyJobs as error:
        full = f"{MOST_UNENDED} of your batches have not ended. Wait for one, or cancel one."
        raise BacklogFull(full, retry_after_s=RETRY_S) from error
    except QuoteUsed as used:
        raise QuoteUnusable(str(used), param="magnus.quote", code="quote_used") from used
    except FileDeleted as error:
        raise file_not_found(new.input_file_id) from error
    return shown(job)


def _changed(id: str, change: Callable[[Session, str, str], bool]) -> Batch:
    """Changes a batch and returns it; raises InvalidRequest if it has no lines to serve, or its new window is over."""
    find_batch(id)
    with current_context().sessions() as session:
        changed = change(session, current_tenant(), id)
    job = find_batch(id)
    if changed:
        return shown(job)
    if job.status not in CHANGEABLE:
        raise InvalidRequest(f"The batch is {job.status.value}: no line of it waits.", param="id", code="batch_ended")
    over = f"Counted from the batch's creation at {job.created_at:%Y-%m-%d %H:%M:%S} UTC, this window has ended."
    raise InvalidRequest(f"{over} Give a longer one.", param="completion_window")


def find_batch(id: str) -> BulkJob:
    """Returns a batch of the current tenant; raises NotFound."""
    if BATCH_ID.fullmatch(id):
        with current_context().sessions() as session:
            job = bulk_jobs.fetch_job(session, current_tenant(), id)
        if job is not None:
            return job
    raise NotFound(f"No batch found with id '{id[:80]}'.", param="id", code="batch_not_found")
