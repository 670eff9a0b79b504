"""No code of a model's own runs, whatever loads the model, and whatever stands on the standard input."""

import ast
import io
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import commands
from inference.engine_errors import InferenceError
from inference.local.loading.model_loading import load_model
from inference.prompts.prompt_format import load_prompt_format
from learning.features.sentence_encoder import SentenceEncoder
from learning.features.text_encoders import UnusableEncoder
from learning.predictors.language_model import LanguageModel
from tests.unit.inference.model_directories import all_of, setting, whole_model, written

ROOT = Path(__file__).parents[4]
PACKAGES = ("benchmarks", "cli", "inference", "learning", "models", "processes", "scheduling", "tasks", "webapp")
LOADING = ("from_pretrained", "SentenceTransformer", "CrossEncoder")
AUTO_MAP = {
    "AutoConfig": "hostile.Config",
    "AutoModel": "hostile.Model",
    "AutoModelForCausalLM": "hostile.Model",
    "AutoTokenizer": ["hostile.Tokenizer", "hostile.Tokenizer"],
    "AutoProcessor": "hostile.Processor",
}
TEMPLATE = "{{ ''.__class__.__mro__[1].__subclasses__() }}"

YES = "y\n" * 9

LOADS: dict[str, Callable[[str], object]] = {
    "the engine": load_model,
    "the web process": load_prompt_format,
    "a predictor": LanguageModel,
    "a text encoder": SentenceEncoder,
    "magnus profile": lambda model: CliRunner().invoke(commands, ["profile", "--quick", "--model", model], input=YES),
}


@pytest.fixture(params=["hostile", "llama"])
def hostile(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A whole model whose code would leave the file `trace`; transformers knows one of the two types without it."""
    model = whole_model(tmp_path / "model")
    code = f"open({str(tmp_path / 'trace')!r}, 'w')\n"
    types = [{"idx": 0, "name": "0", "path": "", "type": "hostile.Model"}]
    all_of(
        setting("config.json", model_type=request.param, auto_map=AUTO_MAP),
        setting("tokenizer_config.json", auto_map=AUTO_MAP, tokenizer_class="HostileTokenizer", chat_template=TEMPLATE),
        setting("processor_config.json", auto_map=AUTO_MAP),
        written("modules.json", str(types).replace("'", '"')),
        written("hostile.py", code),
        written("modeling_llama.py", code),
        lambda model: (model / "custom_generate").mkdir(),
        written("custom_generate/generate.py", code),
    )(model)
    return model


@pytest.mark.parametrize("who", LOADS)
def test_code_in_a_models_directory_never_runs(who: str, hostile: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(YES))
    monkeypatch.chdir(hostile)
    with suppress(InferenceError, UnusableEncoder, ValueError):
        LOADS[who](str(hostile))
    assert not (hostile.parent / "trace").exists()


def test_every_loading_by_transformers_says_that_the_models_code_is_not_trusted():
    sources = {path: path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    calls = [
        (path.relative_to(ROOT), call)
        for path, source in sources.items()
        if any(f"{name}(" in source for name in LOADING)
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in LOADING
    ]
    assert len(calls) >= 8
    for path, call in calls:
        trusted = [ast.unparse(each.value) for each in call.keywords if each.arg == "trust_remote_code"]
        assert trusted == ["False"], f"{path}:{call.lineno}"
