"""A bulk job's results as a table for programs that read no JSON lines: CSV, and Parquet where pyarrow is installed."""

import io
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from pydantic_core import to_json, to_jsonable_python

from extras import ExtraMissing, load
from protocol.client_errors import InvalidRequest
from protocol.csv_tables import as_csv

COLUMNS = {
    "custom_id": str,
    "choice": int,
    "text": str,
    "finish_reason": str,
    "prompt_tokens": int,
    "completion_tokens": int,
    "status_code": int,
    "error_code": str,
    "error_message": str,
    "request_id": str,
}
Row = tuple[str | int | None, ...]
ROWS_OF_A_GROUP = 1000  # rows of a Parquet row group, which are held in memory at once. Not tuned


def table_rows(result: dict[str, Any]) -> Iterator[Row]:
    """Yields a row for each answer of a result line, or one row with its error; the first row has the line's tokens."""
    response = to_jsonable_python(result["response"], fallback=lambda logprobs: None) or {}
    body = response.get("body") or {}
    error = result["error"] or body.get("error") or {}
    usage = body.get("usage") or {}
    tokens = [
        usage.get("prompt_tokens", usage.get("input_tokens")),
        usage.get("completion_tokens", usage.get("output_tokens")),
    ]
    ending = (response.get("status_code"), error.get("code"), error.get("message"), response.get("request_id"))
    for number, (text, reason) in enumerate(_answers(body)):
        yield (result["custom_id"], number, text, reason, *(tokens if number == 0 else (None, None)), *ending)


def _answers(body: dict[str, Any]) -> list[tuple[str | None, str | None]]:
    """Returns text and finish reason of each choice, vector, score or document; or a response's text and state."""
    if "choices" in body:
        return [
            (choice["message"].get("content") if "message" in choice else choice["text"], choice["finish_reason"])
            for choice in body["choices"]
        ]
    if "data" in body or "results" in body:
        return [(to_json(one).decode(), None) for one in body.get("data") or body["results"]]
    parts = [part for item in body.get("output") or () for part in item.get("content") or ()]
    text = "".join(part["text"] for part in parts if part.get("type") == "output_text")
    return [(text, body["status"])] if "output" in body else [(None, None)]


def csv_pieces(rows: Iterable[Row]) -> Iterator[bytes]:
    """Yields the table as CSV with a first line of names."""
    return (as_csv(some).encode() for some in _groups(chain([tuple(COLUMNS)], rows)))


def _groups(rows: Iterable[Row]) -> Iterator[list[Row]]:
    left = iter(rows)
    return iter(lambda: list(islice(left, ROWS_OF_A_GROUP)), [])


def parquet_pieces(rows: Iterable[Row]) -> Iterator[bytes]:
    """Returns the table as a Parquet file, piece by piece; raises InvalidRequest without pyarrow."""
    try:
        arrow, parquet = (load(name, "Parquet", "parquet") for name in ("pyarrow", "pyarrow.parquet"))
    except ExtraMissing as error:
        raise InvalidRequest(f"{error}. csv needs nothing.", param="format", code="format_unavailable") from error
    types = {str: arrow.string(), int: arrow.int64()}
    schema = arrow.schema([(name, types[kind]) for name, kind in COLUMNS.items()])

    def pieces() -> Iterator[bytes]:
        sink = _Sink()
        with parquet.ParquetWriter(sink, schema) as writer:
            for some in _groups(rows):
                columns = [
                    arrow.array(column, one.type) for column, one in zip(zip(*some, strict=True), schema, strict=True)
                ]
                writer.write_table(arrow.Table.from_arrays(columns, schema=schema))
                yield sink.take()
        yield sink.take()

    return pieces()


class _Sink(io.RawIOBase):
    """A file that keeps what was written until it is taken."""

    def __init__(self) -> None:
        self._written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._written += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._written)
        self._written.clear()
        return taken
