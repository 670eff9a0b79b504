"""The benchmarks' own client speaks as much HTTP as it needs."""

import asyncio

from benchmarks.api.submissions import content_length, post, status_of

HEAD = b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nCONTENT-LENGTH: 12\r\n\r\n"


def test_the_length_of_an_answer_is_read_whatever_its_case() -> None:
    assert content_length(HEAD) == 12


def test_an_answer_is_read_to_its_end_and_not_beyond() -> None:
    async def read_two() -> tuple[int, int, bytes]:
        reader = asyncio.StreamReader()
        reader.feed_data(HEAD + b"x" * 12 + HEAD.replace(b"429", b"200") + b"y" * 12)
        reader.feed_eof()
        return await status_of(reader), await status_of(reader), await reader.read()

    assert asyncio.run(read_two()) == (429, 200, b"")


def test_a_post_says_how_long_it_is() -> None:
    head, body = post("/v1/responses", "key", {"input": "é" * 7}).split(b"\r\n\r\n")
    assert content_length(head) == len(body)
