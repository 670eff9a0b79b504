"""Results as tables: a row for each answer, one for an error, quoted as CSV has it."""

import csv
import sys
from typing import Any

import pytest

from protocol.bulk.result_tables import COLUMNS, ROWS_OF_A_GROUP, csv_pieces, parquet_pieces, table_rows
from protocol.client_errors import InvalidRequest


def answered(body: dict[str, Any]) -> dict[str, Any]:
    return {"custom_id": "a", "response": {"status_code": 200, "request_id": "resp_1", "body": body}, "error": None}


def rows(result: dict[str, Any]) -> list[dict[str, object]]:
    return [dict(zip(COLUMNS, row, strict=True)) for row in table_rows(result)]


def test_each_choice_has_a_row_and_the_first_has_the_tokens_of_all() -> None:
    choices = [{"message": {"content": text}, "finish_reason": "stop"} for text in ("x", "y")]
    first, second = rows(answered({"choices": choices, "usage": {"prompt_tokens": 3, "completion_tokens": 8}}))
    assert (first["choice"], first["text"], first["prompt_tokens"], first["completion_tokens"]) == (0, "x", 3, 8)
    assert (second["choice"], second["text"], second["completion_tokens"]) == (1, "y", None)
    assert (second["custom_id"], second["request_id"], second["status_code"]) == ("a", "resp_1", 200)


def test_completions_and_responses_have_their_texts() -> None:
    (completion,) = rows(answered({"choices": [{"text": "x", "finish_reason": "length"}], "usage": {}}))
    assert (completion["text"], completion["finish_reason"]) == ("x", "length")
    parts = [{"type": "output_text", "text": "x"}, {"type": "output_text", "text": "y"}]
    output = [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}, {"content": parts}]
    usage = {"input_tokens": 1, "output_tokens": 2}
    (response,) = rows(answered({"output": output, "status": "completed", "usage": usage}))
    assert (response["text"], response["prompt_tokens"], response["completion_tokens"]) == ("xy", 1, 2)


def test_vectors_and_ranked_documents_have_a_row_each_as_json() -> None:
    vectors = [{"index": 0, "embedding": [0.5]}, {"index": 1, "embedding": [1.5]}]
    first, second = rows(answered({"data": vectors, "usage": {"prompt_tokens": 3, "total_tokens": 3}}))
    assert (first["text"], first["prompt_tokens"], second["choice"]) == ('{"index":0,"embedding":[0.5]}', 3, 1)
    (ranked,) = rows(answered({"results": [{"index": 1, "relevance_score": 0.5}], "usage": {}}))
    assert ranked["text"] == '{"index":1,"relevance_score":0.5}'


def test_an_error_is_a_row_without_text() -> None:
    (unserved,) = rows({"custom_id": "a", "response": None, "error": {"code": "batch_expired", "message": "Late."}})
    assert (unserved["text"], unserved["error_code"], unserved["error_message"]) == (None, "batch_expired", "Late.")
    refused = {"status_code": 400, "request_id": None, "body": {"error": {"code": "missing", "message": "No model."}}}
    (row,) = rows({"custom_id": None, "response": refused, "error": None})
    assert (row["custom_id"], row["status_code"], row["error_code"]) == (None, 400, "missing")


def test_csv_reads_back_whatever_the_texts_have() -> None:
    texts = ['say "no", or\nyes', "", "ü;\t"] * ROWS_OF_A_GROUP
    table = [("a", 0, text, "stop", 1, 2, 200, None, None, "resp_1") for text in texts]
    pieces = list(csv_pieces(table))
    assert len(pieces) > 3
    read = list(csv.DictReader(b"".join(pieces).decode().splitlines(keepends=True)))
    assert [row["text"] for row in read] == texts
    assert list(read[0]) == list(COLUMNS)


def test_without_pyarrow_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidRequest, match=r"magnus-llm\[parquet\]") as refused:
        parquet_pieces([])
    assert refused.value.param == "format"
