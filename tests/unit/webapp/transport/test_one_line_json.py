"""What is sent as one line of JSON stays one line for every reader."""

import json

from hypothesis import given
from hypothesis import strategies as st

from webapp.transport.one_line_json import one_line_json

TEXT = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("\x85\u2028\u2029\x0b\x0c\x1c\x1d\x1e\r\n\\u")
)


@given(st.dictionaries(TEXT, TEXT | st.lists(TEXT)))
def test_no_reader_splits_a_line_of_json(value: dict[str, object]) -> None:
    line = one_line_json(value).decode()
    assert len(line.splitlines()) == 1
    assert json.loads(line) == value
