"""A request's status decides whether it can still change, in the code and in the database's own check alike."""

from sqlalchemy import CheckConstraint, Table

from models.tables import RequestStatus, StoredRequest


def test_a_request_is_final_in_every_status_but_queued_and_in_progress() -> None:
    assert [status for status in RequestStatus if not status.final] == ["queued", "in_progress"]


def test_the_database_demands_an_end_of_exactly_the_final_requests() -> None:
    table = StoredRequest.__table__
    assert isinstance(table, Table)
    (check,) = [c for c in table.constraints if isinstance(c, CheckConstraint) and c.name]
    unfinished = ", ".join(f"'{status}'" for status in RequestStatus if not status.final)
    assert str(check.sqltext) == f"(status in ({unfinished})) = (finished_at is null)"
