"""The sender of many submissions speaks as much HTTP as it needs."""

from itertools import islice

from benchmarks.api.many_submissions import content_length, posts


def test_the_length_of_an_answer_is_read_whatever_its_case() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nCONTENT-LENGTH: 12\r\n\r\n"
    assert content_length(head) == 12


def test_a_post_says_how_long_it_is_and_there_is_always_another_one() -> None:
    for post in islice(posts("bundled", "key"), 1000):
        head, body = post.split(b"\r\n\r\n")
        assert content_length(head) == len(body)
