"""Which ids of requests can exist."""

import pytest

from protocol.client_errors import NotFound
from webapp.requests.stored_requests import require_response_id


@pytest.mark.parametrize("id", ["", "resp_", "resp_" + "0" * 31, "resp_" + "G" * 32, "resp_" + "0" * 32 + "\n"])
def test_what_cannot_be_an_id_is_not_found_without_asking_the_database(id: str) -> None:
    with pytest.raises(NotFound) as caught:
        require_response_id(id)
    assert (caught.value.param, caught.value.code) == ("id", "response_not_found")


def test_an_id_of_ours_passes() -> None:
    require_response_id("resp_" + "0" * 32)
