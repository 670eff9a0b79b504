"""/v1/files: upload, list, retrieve, read, delete. A file is stored in chunks and sent in chunks."""

import re
from collections.abc import Iterator

from apiflask import APIBlueprint
from flask import Response, request

from models.bulk import bulk_jobs, stored_files
from models.bulk.bulk_tables import FilePurpose, StoredFile
from protocol.bulk.bulk_schemas import DeletedFile, FileList, FileListQuery, FileObject, file_object
from protocol.bulk.result_lines import EndingJob, result_lines
from protocol.client_errors import NotFound
from webapp.bulk.file_upload import store_upload
from webapp.context.app_context import current_context
from webapp.context.auth import current_tenant
from webapp.routes.list_pages import read_page

FILE_ID = re.compile(r"file-[0-9a-f]{32}")  # as `stored_files.new_file_id` makes them
PURPOSES = {"batch": (FilePurpose.batch,), "batch_output": (FilePurpose.output, FilePurpose.error), None: ()}

api = APIBlueprint("files", __name__, url_prefix="/v1/files", tag="Files")


@api.post("")
@api.output(FileObject)
@api.doc(summary="Upload a file", security="ApiKey", responses=[400, 401, 403, 413, 429, 503])
def upload() -> FileObject:
    """Stores JSON lines for a batch: at most 200 MB and 50,000 lines."""
    context = current_context()
    tenant, limits = current_tenant(), context.upload_limits
    return file_object(store_upload(context.sessions, tenant, request.environ, limits, context.tenant_turns[tenant]))


@api.get("")
@api.input(FileListQuery, location="query")
@api.output(FileList)
@api.doc(summary="List files", security="ApiKey", responses=[400, 401, 403, 429, 503])
def list_files(query_data: FileListQuery) -> FileList:
    """Lists files, newest first unless asked otherwise; `after` takes the last id of the page before."""
    purposes, oldest_first = PURPOSES[query_data.purpose], query_data.order == "asc"
    asked = {"purposes": purposes, "limit": query_data.limit, "oldest_first": oldest_first}
    page = read_page("file", FILE_ID, stored_files.file_page, query_data.after, **asked)
    return FileList.with_entries([file_object(file) for file in page.entries], has_more=page.more)


@api.get("/<id>")
@api.output(FileObject)
@api.doc(summary="Retrieve a file's description", security="ApiKey", responses=[401, 403, 404, 429, 503])
def retrieve_file(id: str) -> FileObject:
    """Returns name, size and purpose."""
    return file_object(find_file(id))


@api.get("/<id>/content")
@api.doc(summary="Read a file", security="ApiKey", responses=[200, 401, 403, 404, 429, 503])
def read_file(id: str) -> Response:
    """Returns the bytes as they were uploaded; for a batch's results, the lines that have ended by now."""
    return Response(content_of(find_file(id)), mimetype="application/octet-stream")


@api.delete("/<id>")
@api.output(DeletedFile)
@api.doc(summary="Delete a file", security="ApiKey", responses=[401, 403, 404, 429, 503])
def delete_file(id: str) -> DeletedFile:
    """Hides the file at once; a batch that was made from it goes on reading it."""
    with current_context().sessions() as session:
        if not FILE_ID.fullmatch(id) or not stored_files.delete_file(session, current_tenant(), id):
            raise file_not_found(id)
    return DeletedFile(id=id)


def find_file(id: str) -> StoredFile:
    """Returns a file of the current tenant; raises NotFound."""
    if not FILE_ID.fullmatch(id):
        raise file_not_found(id)
    with current_context().sessions() as session:
        file = stored_files.fetch_file(session, current_tenant(), id)
    if file is None:
        raise file_not_found(id)
    return file


def file_not_found(id: str) -> NotFound:
    """Returns the error for an id that this tenant does not have."""
    return NotFound(f"No such File object: '{id[:80]}'.", param="id", code="file_not_found")


def content_of(file: StoredFile) -> Iterator[bytes]:
    """Returns the file's bytes piece by piece; between two pieces it holds no connection to the database."""
    sessions = current_context().sessions
    if file.purpose is FilePurpose.batch:
        return stored_files.chunks(sessions, file.id)
    with sessions() as session:
        job = bulk_jobs.job_of_results(session, file.tenant, file.id)
    if job is None:
        return iter(())
    return result_lines(
        EndingJob(job.id, job.endpoint, job.status), bulk_jobs.pages_of_ended_lines(sessions, job.id, file.purpose)
    )
