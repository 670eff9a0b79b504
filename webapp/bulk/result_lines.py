"""Makes a bulk job's result files line by line from its requests, each time that they are read."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from models.bulk.bulk_jobs import EndedLine, ended_lines
from models.bulk.bulk_tables import BulkStatus, FilePurpose
from models.tables import RequestStatus, StoredRequest
from webapp.bulk.request_lines import ENDPOINTS
from webapp.transport.one_line_json import one_line_json

# Answers read and written at once. With large requests, a larger page delays other calls of the process for longer;
# with small ones, it saves statements.
PAGE_ANSWERS = 25

ANSWERED = (RequestStatus.completed, RequestStatus.incomplete)
UNSERVED = {
    BulkStatus.expired: ("batch_expired", "The batch's completion window ended before this request was served."),
    BulkStatus.cancelled: ("batch_cancelled", "The batch was cancelled before this request was served."),
}


@dataclass(frozen=True, slots=True)
class EndingJob:
    """The facts of a job that its result lines show: the call that they make, and why it did not serve them."""

    id: str
    endpoint: str
    status: BulkStatus


def result_lines(sessions: sessionmaker[Session], job: EndingJob, purpose: FilePurpose | None) -> Iterator[bytes]:
    """Yields the lines of the output file, of the error file, or of both that have ended, in the order of the input."""
    for page in results(sessions, job, purpose):
        yield b"".join(one_line_json(result) + b"\n" for result in page)


def results(
    sessions: sessionmaker[Session], job: EndingJob, purpose: FilePurpose | None
) -> Iterator[list[dict[str, Any]]]:
    """Yields what `result_lines` writes, page by page; between two pages it holds no connection."""
    after = 0
    while True:
        with sessions() as session:
            page = ended_lines(session, job.id, purpose, after, PAGE_ANSWERS)
        if not page:
            return
        yield [_result(job, line) for line in page]
        after = page[-1].line


def _result(job: EndingJob, line: EndedLine) -> dict[str, Any]:
    response, error = None, None
    unanswered = [view.request for view in line.views if view.request.status not in ANSWERED]
    whole = len(line.views) == len(line.request_ids) > 0
    if whole and not unanswered:
        response = _response(200, line.request_ids[0], ENDPOINTS[job.endpoint].answer(line.views))
    elif line.error is not None and line.custom_id is None:
        error = {name: line.error.get(name) for name in ("code", "message", "param")} | {"line": line.line}
    elif line.error is not None:
        details = {name: line.error.get(name) for name in ("message", "type", "param", "code")}
        response = _response(line.error["status"], None, {"error": details})
    elif not whole:
        deleted = next(one for one in line.request_ids if one not in {view.request.id for view in line.views})
        error = {"code": "response_deleted", "message": f"{deleted} was deleted."}
    else:
        stored = next((one for one in unanswered if not _unserved(job, one)), unanswered[0])
        failure = _failure(stored)
        if _unserved(job, stored):
            error = dict(zip(("code", "message"), UNSERVED[job.status], strict=True))
        else:
            details = {"message": failure.get("message"), "type": "server_error", "param": None}
            response = _response(502, stored.id, {"error": details | {"code": failure.get("code")}})
    return {
        "id": f"batch_req_{job.id.removeprefix('batch_')[:16]}_{line.line}",
        "custom_id": line.custom_id,
        "response": response,
        "error": error,
    }


def _failure(request: StoredRequest) -> dict[str, Any]:
    return request.error or {"code": "cancelled", "message": f"{request.id} was cancelled."}


def _unserved(job: EndingJob, request: StoredRequest) -> bool:
    """Whether an unanswered request ended because its job did."""
    return job.status in UNSERVED and _failure(request)["code"] in ("cancelled", "deadline_exceeded")


def _response(status: int, request_id: str | None, body: object) -> dict[str, object]:
    return {"status_code": status, "request_id": request_id, "body": body}
