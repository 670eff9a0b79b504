"""Cuts an upload into chunks of whole lines as it comes, and refuses what can be no file of requests. No I/O."""

from collections.abc import Iterator

from webapp.client_errors import InvalidRequest

# Bytes of a chunk, which is one row of the database. A step of a job reads one and takes lines from it: of smaller ones
# a file of long lines needs more steps, larger ones are held by the web process and read again by more steps.
CHUNK_BYTES = 1024 * 1024
MOST_LINES = 50_000  # OpenAI's bound of a batch
MOST_BLANK_LINES = 50_000  # beside them; any bound does that keeps what is read bounded
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some programs on Windows begin UTF-8 files with it


class LineChunks:
    """The lines of one upload so far; holds less than a chunk and a line of bytes."""

    def __init__(self, max_line_bytes: int) -> None:
        self.size_bytes = self.lines = self.last_line = 0
        self._max_line_bytes = max_line_bytes
        self._open = bytearray()  # what is not in a chunk yet: whole lines, then the beginning of one
        self._whole = 0  # bytes of whole lines in it

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take the next bytes; gives (number of its first line, bytes) of each chunk that is full.

        Raises InvalidRequest for a line that is too long, not UTF-8 or has a NUL, and for too many lines.
        """
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
        """The last chunk, if there is one; raises InvalidRequest as `feed`, and for a file without lines."""
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
