"""What a worker reports is written in statements of bounded size."""

from pydantic_core import from_json

from models.leasing.batch_results import Answer, in_parts
from models.leasing.leases import Lease
from models.tables import RequestStatus


def answer(number: int, text: str) -> Answer:
    return Answer(Lease(1, 1), f"r{number}", RequestStatus.completed, text, 1, "eos", 0.0)


def test_answers_are_written_in_parts_of_so_many_bytes_or_of_one_answer() -> None:
    answers = [answer(number, "é" * size) for number, size in enumerate((10, 10, 5_000, 10, 900, 900, 10))]
    parts = list(in_parts(answers, most_bytes=2_500))
    assert [one for part, _ in parts for one in part] == answers
    assert [len(part) for part, _ in parts] == [2, 1, 2, 2]
    assert all(len(stored.encode()) < 2_600 or len(part) == 1 for part, stored in parts)
    read = [one["request_id"] for _, stored in parts for one in from_json(stored)]
    assert read == [one.request_id for one in answers]


def test_nothing_is_no_part() -> None:
    assert list(in_parts([])) == []
