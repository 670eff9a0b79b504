"""A row of `requests` becomes the request that policies schedule, field by field."""

from types import SimpleNamespace
from typing import Any

from models.planning.planner_requests import REQUEST_COLUMNS, to_request
from scheduling.request import Request


def test_every_column_that_a_policy_needs_is_read() -> None:
    row: Any = SimpleNamespace(
        id="resp_1",
        model="small",
        arrived_at=100.5,
        prompt_tokens=30,
        limit_tokens=64,
        predicted_tokens=20,
        predicted_upper_tokens=40,
        generated=8,
        tier="flex",
        priority=2,
        tenant="acme",
        deadline_at=200.0,
        application="copy",
        needs=["logprobs"],
        outgrew_tokens=0,
        sealed_group=None,
        suspect_group=None,
        job="batch_1",
        held=False,
        shares=False,
    )
    assert vars(row).keys() == REQUEST_COLUMNS.keys()
    assert to_request(row) == Request(
        id="resp_1",
        arrived_at=100.5,
        length=30,
        limit=64,
        predicted=20,
        predicted_upper=40,
        model="small",
        generated=8,
        tier="flex",
        priority=2,
        tenant="acme",
        deadline_at=200.0,
        application="copy",
        needs=frozenset({"logprobs"}),
        job="batch_1",
    )
