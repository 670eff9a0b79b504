"""Files of a model that are missing or damaged."""

import pytest

from inference.engine_errors import UnreadableModel
from inference.model_directory.model_files import read_json


@pytest.mark.parametrize("text", ["{", "[]", "5", '"text"', "{'a': 1}"])
def test_a_file_that_is_no_json_object_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UnreadableModel, match=r"config\.json is no JSON"):
        read_json(str(tmp_path), "config.json")


def test_a_missing_file_says_nothing(tmp_path):
    assert read_json(str(tmp_path), "config.json") == {}
