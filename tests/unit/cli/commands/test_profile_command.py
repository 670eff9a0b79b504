"""A model that cannot be measured is refused in one line."""

import sys
from pathlib import Path

import pytest

from cli.main import main
from tests.unit.inference.model_directories import setting, whole_model, without


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("lm_head"), "cannot be served: its files lack lm_head.weight"),
        (setting("config.json", model_type="t5"), "no causal language model of the type t5"),
        (setting("config.json", quantization_config={"quant_method": "gptq"}), "pip install gptqmodel"),
        (setting("tokenizer.json", model=None), "its tokenizer.json or tokenizer_config.json is damaged"),
    ],
)
def test_a_model_that_cannot_be_loaded_ends_the_command_with_one_line_and_status_2(
    change, said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    model = whole_model(tmp_path)
    capfd.readouterr()
    change(model)
    monkeypatch.setattr(sys, "argv", ["magnus", "profile", "--quick", "--model", str(model)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    printed, told = capfd.readouterr()
    assert printed == ""
    (line,) = told.splitlines()
    assert said in line
