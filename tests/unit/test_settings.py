"""Settings: what is documented is what there is, and a misspelt name is refused."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from settings import BUNDLED_MODEL, Settings, UnknownSetting, read_settings

ROOT = Path(__file__).parents[2]


def documented() -> dict[str, str]:
    lines = re.findall(r"^# (MAGNUS_\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE)
    return dict(lines)


def test_the_example_lists_every_setting_in_the_order_of_the_code() -> None:
    assert list(documented()) == [f"MAGNUS_{name.upper()}" for name in Settings.model_fields]


def test_the_example_shows_the_defaults() -> None:
    shown = documented()
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None else str(field.default)
        expected = str(BUNDLED_MODEL.relative_to(ROOT)) if name == "model" else default
        assert shown[f"MAGNUS_{name.upper()}"] == expected


def test_the_example_describes_every_setting() -> None:
    text = (ROOT / ".env.example").read_text().replace("\n# ", " ")
    for field in Settings.model_fields.values():
        assert field.description is not None
        assert field.description in text


def test_a_misspelt_setting_is_refused_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNUS_POLICI", "vs")
    with pytest.raises(UnknownSetting, match="did you mean MAGNUS_POLICY"):
        read_settings()


def test_a_value_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNUS_PORT", "65536")
    with pytest.raises(ValidationError, match="port"):
        read_settings()


def test_an_override_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNUS_POLICY", "vs")
    assert read_settings(policy="scls").policy == "scls"


def test_lengths_that_policies_go_by_follow_the_model() -> None:
    # 50,000 reads and slices of 128 are for answers of up to 1,024 tokens; the bundled model's have 14 on average
    assert Settings().slice_length == 32
    assert Settings(model="/models/large").slice_length == 128
    assert Settings(slice_tokens=9).slice_length == 9
