"""What an answer of /v1/messages shows of calls, and the types of its errors."""

from typing import Any

import pytest

from inference.tool_calls import ToolCall
from protocol.messages.message_objects import error_type, shown_call


@pytest.mark.parametrize(
    ("arguments", "input"),
    [
        ('{"city": "Köln", "days": [1, 2]}', {"city": "Köln", "days": [1, 2]}),
        ("", {}),
        ('{"ci', {}),
        ('{"city": "Kö', {"city": "Kö"}),
        ('{"days": [1, {"a', {"days": [1, {}]}),
        ('{"days": 01', {}),
        ('{"a": ' * 500, {}),
    ],
)
def test_a_call_has_its_arguments_as_an_object_also_if_the_limit_has_cut_them(
    arguments: str, input: dict[str, Any]
) -> None:
    assert shown_call("call_1", ToolCall("weather", arguments)).input == input


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "api_error"),
    ],
)
def test_every_status_has_its_type_of_error(status: int, kind: str) -> None:
    assert error_type(status) == kind
