"""Uploads are cut into chunks of whole lines whatever pieces they come in; what can be no file of lines is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.client_errors import InvalidRequest
from webapp.bulk.file_upload import CHUNK_BYTES, MOST_LINES, LineChunks

LONGEST = 4 * CHUNK_BYTES


def chunks_of(pieces: list[bytes], longest: int = LONGEST) -> tuple[list[tuple[int, bytes]], LineChunks]:
    cut = LineChunks(longest)
    chunks = [chunk for piece in pieces for chunk in cut.feed(piece)]
    return [*chunks, *cut.finish()], cut


def refusal(content: bytes, longest: int = LONGEST) -> str:
    with pytest.raises(InvalidRequest) as refused:
        chunks_of([content[start : start + 65_536] for start in range(0, len(content), 65_536)] or [b""], longest)
    return refused.value.message


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\n"), max_size=9), min_size=1, max_size=30),
    st.lists(st.integers(1, 40), min_size=1),
    st.booleans(),
)
def test_chunks_are_the_content_in_whole_lines_however_it_comes(
    texts: list[str], cuts: list[int], ends_with_newline: bool
) -> None:
    factor = CHUNK_BYTES // 40  # so that there are several chunks
    content = "\n".join(text * factor for text in ["a", *texts]).encode() + b"\n" * ends_with_newline
    pieces: list[bytes] = []
    start = 0
    while start < len(content):
        size = cuts[len(pieces) % len(cuts)] * 1000
        pieces.append(content[start : start + size])
        start += size
    chunks, cut = chunks_of(pieces, len(content) + 1)
    assert b"".join(data for _, data in chunks) == content
    assert all(data.endswith(b"\n") for _, data in chunks[:-1])
    lines = content.removesuffix(b"\n").split(b"\n")
    assert (cut.size_bytes, cut.last_line) == (len(content), len(lines))
    assert cut.lines == sum(bool(line.strip()) for line in lines)
    for first_line, data in chunks:
        assert data.removesuffix(b"\n").split(b"\n")[0] == lines[first_line - 1]


def test_a_byte_order_mark_is_left_out() -> None:
    assert chunks_of([b"\xef\xbb\xbf{}\n"])[0] == [(1, b"{}\n")]


def test_no_more_is_held_than_a_chunk_and_a_line() -> None:
    cut = LineChunks(LONGEST)
    for _ in range(100):
        for _ in cut.feed(b"x" * 10_000 + b"\n"):
            pass
        assert len(cut._open) < CHUNK_BYTES + 20_000


def test_a_line_that_is_too_long_is_refused_before_it_has_ended() -> None:
    cut = LineChunks(LONGEST)
    list(cut.feed(b"{}\n"))
    without_end = (chunk for _ in range(1000) for chunk in cut.feed(b"x" * 65_536))
    with pytest.raises(InvalidRequest, match="Line 2 of the file has more than"):
        list(without_end)
    assert len(cut._open) <= LONGEST + 2 * 65_536


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "The file has no lines."),
        (b" \n\r\n", "The file has no lines."),
        (b'{}\n\n{"a": "\xff"}\n', "Line 3 of the file is not UTF-8."),
        (b"{}\n\0\n", "Line 2 of the file has a NUL byte."),
        (b"{}\n" * (MOST_LINES + 1), "more than 50,000 lines"),
        (b"{}\n" + b"\n" * 60_000, "more than 50,000 lines"),
        (b"x" * (LONGEST + 1) + b"\n{}\n", "Line 1 of the file has more than"),
        (b"{}\n" * 9 + b"x" * (LONGEST + 1) + b"\n{}\n", "Line 10 of the file has more than"),
    ],
)
def test_what_can_be_no_file_of_lines_is_refused_by_line(content: bytes, said: str) -> None:
    assert said in refusal(content)


def test_as_many_lines_as_openai_allows_are_taken() -> None:
    assert chunks_of([b"{}\n" * MOST_LINES])[1].lines == MOST_LINES
