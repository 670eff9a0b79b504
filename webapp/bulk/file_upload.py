"""Stores a multipart upload in the database chunk by chunk; the whole file is never in memory, nor on a disk.

Each chunk is stored by a statement of its own, and the file is visible only once the last one is stored. If an upload
is interrupted, this process or the upkeep deletes its chunks.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, cast

from sqlalchemy.orm import Session, sessionmaker
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import FormDataParser

from models.bulk import stored_files
from models.bulk.bulk_tables import StoredFile
from models.bulk.stored_files import StorageFull
from protocol.bulk.bulk_schemas import EXPIRES_AFTER_S
from protocol.client_errors import InvalidRequest
from webapp.limits.upload_limits import UploadLimits

# Bytes of a chunk, which is one row of the database. A step of a job reads one chunk and takes lines from it. Smaller
# chunks make a file of long lines take more steps; larger ones take more memory and are read again by more steps.
CHUNK_BYTES = 1024 * 1024
MOST_LINES = 50_000  # OpenAI's bound of a batch
MOST_BLANK_LINES = 50_000  # blank lines beside the lines of MOST_LINES; any bound works
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some programs on Windows begin UTF-8 files with it

# Most bytes of an upload beside the file's own: Flask's default. The parser also applies this bound to the part of the
# file that it holds in memory, a little more than 64 KiB.
FORM_BYTES = 500_000
MOST_PARTS = 16  # parts of a form; there are four fields
MAX_FILENAME = 255  # characters; the rest is cut off
FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")


class LineChunks:
    """Splits an upload into chunks of whole lines; holds less than one chunk and one line in memory."""

    def __init__(self, max_line_bytes: int) -> None:
        self.size_bytes = self.lines = self.last_line = 0
        self._max_line_bytes = max_line_bytes
        self._open = bytearray()  # bytes not in a chunk yet: whole lines, then the beginning of one
        self._whole = 0  # bytes of the whole lines in `_open`

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Takes the next bytes; yields (number of its first line, bytes) of each full chunk; raises InvalidRequest."""
        if not self.size_bytes:
            data = data.removeprefix(BYTE_ORDER_MARK)
        self.size_bytes += len(data)
        end = data.rfind(b"\n")
        before = len(self._open)
        self._open += data
        if end >= 0:
            self._whole = before + end + 1
        if len(self._open) - self._whole > self._max_line_bytes:
            raise self._too_long(self.last_line + self._open.count(b"\n", 0, self._whole) + 1)
        if self._whole >= CHUNK_BYTES:
            yield self._chunk(self._whole)

    def finish(self) -> Iterator[tuple[int, bytes]]:
        """Yields the last chunk, if there is one; raises InvalidRequest like `feed`, and for a file without lines."""
        if self._open:
            yield self._chunk(len(self._open))
        if not self.lines:
            raise InvalidRequest("The file has no lines.", param="file", code="empty_file")

    def _chunk(self, length: int) -> tuple[int, bytes]:
        first_line, chunk = self.last_line + 1, bytes(self._open[:length])
        del self._open[:length]
        self._whole = 0
        lines = chunk.removesuffix(b"\n").split(b"\n")
        for number, line in enumerate(lines, first_line):
            if len(line) > self._max_line_bytes:
                raise self._too_long(number)
            if line.strip():
                self.lines += 1
        self.last_line += len(lines)
        if self.lines > MOST_LINES or self.last_line - self.lines > MOST_BLANK_LINES:
            raise InvalidRequest(
                f"The file has more than {MOST_LINES:,} lines; send it as several.", param="file", code="too_many_lines"
            )
        if b"\0" in chunk:
            raise _unreadable(first_line + chunk.count(b"\n", 0, chunk.index(b"\0")), "has a NUL byte")
        try:
            chunk.decode()
        except UnicodeDecodeError as error:
            raise _unreadable(first_line + chunk.count(b"\n", 0, error.start), "is not UTF-8") from error
        return first_line, chunk

    def _too_long(self, number: int) -> InvalidRequest:
        return InvalidRequest(
            f"Line {number} of the file has more than {self._max_line_bytes:,} bytes (MAGNUS_MAX_BODY_BYTES).",
            param="file",
            code="line_too_long",
        )


def _unreadable(number: int, why: str) -> InvalidRequest:
    return InvalidRequest(f"Line {number} of the file {why}.", param="file", code="unreadable_file")


class FileSink:
    """Stores the file that the form parser writes into it; after an error, kept in `error`, it ignores the rest."""

    def __init__(
        self,
        sessions: sessionmaker[Session],
        tenant: str,
        filename: str,
        limits: UploadLimits,
        turns: AbstractContextManager[object],
    ) -> None:
        """Takes what a chunk is stored in, such as a turn among the tenant's calls."""
        self._sessions, self._tenant, self._limits, self._turns = sessions, tenant, limits, turns
        self.chunks = LineChunks(limits.line_bytes)
        self.error: InvalidRequest | RequestEntityTooLarge | None = None
        with sessions() as session:
            self.file_id = stored_files.begin_upload(session, tenant, filename)

    def write(self, data: bytes) -> int:
        """Stores the chunks that these bytes complete."""
        self._store(lambda: self.chunks.feed(data))
        return len(data)

    def seek(self, position: int) -> None:
        """Stores the last chunk; the parser calls this at the end of the file."""
        self._store(self.chunks.finish)

    def close(self) -> None:
        """Does nothing; the parser expects the method."""

    def finish(self, expires_after_s: float | None) -> StoredFile:
        """Makes the whole file visible and returns it; raises the error that kept it from being stored."""
        self.seek(0)
        if self.error is not None:
            raise self.error
        chunks = self.chunks
        with self._sessions() as session:
            return stored_files.finish_upload(
                session, self.file_id, chunks.size_bytes, chunks.lines, chunks.last_line, expires_after_s
            )

    def abandon(self) -> None:
        """Deletes what is stored."""
        with self._sessions() as session:
            stored_files.abandon_upload(session, self.file_id)

    def _store(self, chunks: Callable[[], Iterable[tuple[int, bytes]]]) -> None:
        if self.error is not None:
            return
        try:
            for first_line, chunk in chunks():
                if self.chunks.size_bytes > self._limits.file_bytes:
                    raise RequestEntityTooLarge
                with self._turns, self._sessions() as session:
                    stored_files.add_chunk(
                        session, self._tenant, self.file_id, first_line, chunk, self._limits.tenant_bytes
                    )
        except (InvalidRequest, RequestEntityTooLarge) as error:
            self.error = error
        except StorageFull:
            self.error = InvalidRequest(
                f"Your files would have more than {self._limits.tenant_bytes:,} bytes together "
                "(MAGNUS_TENANT_FILE_BYTES). Delete what you no longer need. A deleted file counts until the batches "
                "made from it have ended.",
                param="file",
                code="storage_full",
            )


def store_upload(
    sessions: sessionmaker[Session],
    tenant: str,
    environ: dict[str, Any],
    limits: UploadLimits,
    turns: AbstractContextManager[object],
) -> StoredFile:
    """Stores the file of a multipart form, each chunk in one of the tenant's turns.

    Raises InvalidRequest, or werkzeug's error for one that is too large.
    """
    sinks: list[FileSink] = []

    def new_sink(*, filename: str | None, **_: object) -> Any:
        if sinks:
            raise InvalidRequest("Send one file at a time.", param="file")
        name = (filename or "").replace("\0", "")[:MAX_FILENAME]
        sinks.append(FileSink(sessions, tenant, name, limits, turns))
        return sinks[0]

    try:
        parser = FormDataParser(
            stream_factory=cast(Any, new_sink),
            max_form_memory_size=FORM_BYTES,
            max_content_length=limits.file_bytes + FORM_BYTES,
            max_form_parts=MOST_PARTS,
        )
        _, form, files = parser.parse_from_environ(environ)
        if list(files) != ["file"]:
            raise InvalidRequest("Missing required parameter: 'file', a file in a multipart form.", param="file")
        expires_after_s = checked_fields(form)
        return sinks[0].finish(expires_after_s)
    except BaseException:
        for sink in sinks:
            sink.abandon()
        raise


def checked_fields(form: MultiDict[str, str]) -> float | None:
    """Returns the seconds after which the file expires, None if it does not; raises InvalidRequest."""
    for name in form:
        if name not in FIELDS:
            shown = (name or "")[:80]  # a part of the form may have no name at all
            raise InvalidRequest(f"Unknown parameter: '{shown}'.", param=shown)
    if form.get("purpose") != "batch":
        raise InvalidRequest("Invalid 'purpose': this service takes files for 'batch' alone.", param="purpose")
    anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise InvalidRequest("Invalid 'expires_after[anchor]': it is 'created_at'.", param="expires_after[anchor]")
    if seconds is None or not (seconds.isascii() and seconds.isdigit() and len(seconds) < 9):
        seconds = "0"
    if int(seconds) not in EXPIRES_AFTER_S:
        raise InvalidRequest(
            f"Invalid 'expires_after[seconds]': {EXPIRES_AFTER_S[0]:,} to {EXPIRES_AFTER_S[-1]:,} whole seconds.",
            param="expires_after[seconds]",
        )
    return float(seconds)
