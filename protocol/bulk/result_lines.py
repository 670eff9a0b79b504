"""Makes a bulk job's result files line by line from its requests, each time that they are read."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from models.bulk.bulk_jobs import EndedLine
from models.bulk.bulk_tables import BulkStatus
from models.new_requests import REFUSED_BY_ENGINE
from models.tables import RequestStatus, StoredRequest
from protocol.bulk.request_lines import ENDPOINTS
from protocol.json_bytes import one_line_json
from protocol.responses.response_objects import UNREADABLE_ANSWER

log = structlog.get_logger()
ANSWERED = (RequestStatus.completed, RequestStatus.incomplete)
UNSERVED = {
    BulkStatus.expired: ("batch_expired", "The batch's completion window ended before this request was served."),
    BulkStatus.cancelled: ("batch_cancelled", "The batch was cancelled before this request was served."),
}


@dataclass(frozen=True, slots=True)
class EndingJob:
    """What the result lines show of their job: its endpoint, and the status that says why requests were not served."""

    id: str
    endpoint: str
    status: BulkStatus


def result_lines(job: EndingJob, pages: Iterable[Sequence[EndedLine]]) -> Iterator[bytes]:
    """Yields the result lines of ended lines, those of one page together."""
    for page in results(job, pages):
        yield b"".join(one_line_json(result) + b"\n" for result in page)


def results(job: EndingJob, pages: Iterable[Sequence[EndedLine]]) -> Iterator[list[dict[str, Any]]]:
    """Yields what `result_lines` writes, page by page."""
    for page in pages:
        yield [_result(job, line) for line in page]


def _result(job: EndingJob, line: EndedLine) -> dict[str, Any]:
    response, error = None, None
    unanswered = [view.request for view in line.views if view.request.status not in ANSWERED]
    whole = len(line.views) == len(line.request_ids) > 0
    if whole and not unanswered:
        response = _answer(job, line)
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
            refused = failure.get("code") == REFUSED_BY_ENGINE
            status, type_ = (400, "invalid_request_error") if refused else (502, "server_error")
            details = {"message": failure.get("message"), "type": type_, "param": None, "code": failure.get("code")}
            response = _response(status, stored.id, {"error": details})
    return {
        "id": f"batch_req_{job.id.removeprefix('batch_')[:16]}_{line.line}",
        "custom_id": line.custom_id,
        "response": response,
        "error": error,
    }


def _answer(job: EndingJob, line: EndedLine) -> dict[str, object]:
    """Returns the answer of a line, or an error if it cannot be read, so that the other lines are still written."""
    try:
        return _response(200, line.request_ids[0], ENDPOINTS[job.endpoint].answer(line.views))
    except Exception:
        log.exception("stored answer not readable", batch=job.id, line=line.line)
        details = {"type": "server_error", "param": None, **UNREADABLE_ANSWER.model_dump()}
        return _response(500, line.request_ids[0], {"error": details})


def _failure(request: StoredRequest) -> dict[str, Any]:
    return request.error or {"code": "cancelled", "message": f"{request.id} was cancelled."}


def _unserved(job: EndingJob, request: StoredRequest) -> bool:
    """Whether an unanswered request ended because its job ended."""
    return job.status in UNSERVED and _failure(request)["code"] in ("cancelled", "deadline_exceeded")


def _response(status: int, request_id: str | None, body: object) -> dict[str, object]:
    return {"status_code": status, "request_id": request_id, "body": body}
