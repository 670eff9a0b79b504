"""CSV for spreadsheets: no text of a model is computed, and everything else stays as it is."""

import csv
import io
import time

import pytest

from protocol.csv_tables import as_csv, shown_as_text


@pytest.mark.parametrize(
    "text",
    [
        "=1+1",
        "@SUM(A1)",
        "+cmd|' /C calc'!A0",
        "-2+3",
        "- apples\n- pears",
        "\t=1+1",
        "\r=1+1",
        "\n=1+1",
        "\uff1d1+1",
        "-",
        "-inf",
        "+1 555 0100",
        "-1\n=1+1",
    ],
)
def test_a_text_that_begins_as_a_formula_is_shown_as_text(text: str) -> None:
    assert shown_as_text(text) == f"'{text}"


@pytest.mark.parametrize("cell", ["a=b", "'=1+1", "", " -1", "-1", "+2.5", "-.5", "-1e-3", "\u2014 a", -1, -0.5, None])
def test_numbers_and_other_texts_stay_as_they_are(cell: object) -> None:
    assert shown_as_text(cell) == cell


@pytest.mark.parametrize("separator", [";", "\t", "|", ","])
def test_a_text_with_the_separator_of_some_spreadsheet_is_quoted(separator: str) -> None:
    text = f"a{separator}=1+1{separator}b"
    assert as_csv([(1, text, None)]) == f'1,"{text}",\r\n'


def test_digits_without_end_are_told_from_a_number_in_time_that_grows_with_their_length() -> None:
    began = time.process_time()
    assert str(shown_as_text("-" + "1" * 300_000 + "x")).startswith("'-1")
    assert time.process_time() - began < 5  # 3 ms; 10 minutes with a pattern that goes back


def test_lines_end_and_quotes_double_as_rfc_4180_says() -> None:
    table = as_csv([("name", "text"), ("a", 'say "no",\nor =1'), ("b", '=HYPERLINK("x")')])
    assert table == 'name,text\r\na,"say ""no"",\nor =1"\r\nb,"\'=HYPERLINK(""x"")"\r\n'
    assert [row[0] for row in csv.reader(io.StringIO(table, newline=""))] == ["name", "a", "b"]
