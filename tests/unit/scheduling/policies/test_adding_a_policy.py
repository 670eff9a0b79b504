"""The example in the documentation is a working policy."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[4] / "docs" / "adding-a-policy.md"


def test_the_example_of_the_documentation_serves_every_request(capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL))
    names: dict[str, object] = {}
    exec(compile(code, PAGE.name, "exec"), names)
    assert len(names["trace"].answers) == 20  # type: ignore[attr-defined]
    assert "requests/s" in capsys.readouterr().out
