"""Answers with vectors and scores, read from what is stored."""

from datetime import UTC, datetime

import numpy as np
import pytest

from inference.embedding.vectors import packed
from models.client_requests import RequestView
from models.tables import StoredRequest
from protocol.client_errors import NotAnswered
from protocol.texts.text_objects import values_of


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_stored_vector_with_a_value_that_json_does_not_have_is_no_answer(value: float) -> None:
    stored = StoredRequest(id="resp_1", output_text=packed(np.array([1.0, value], np.float32)))
    with pytest.raises(NotAnswered, match="resp_1"):
        values_of(RequestView(stored, None, 0, datetime.now(UTC)), 1)
