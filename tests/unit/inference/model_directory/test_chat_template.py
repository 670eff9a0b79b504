"""Which template a model has, and what templates may do."""

import json
from pathlib import Path

import pytest
from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from transformers import AutoTokenizer

from inference.engine_errors import UnreadableModel
from inference.model_directory.chat_template import ChatTemplates, compile_chat_template, read_chat_templates
from settings import BUNDLED_MODEL


@pytest.mark.parametrize(
    ("settings", "file", "templates"),
    [
        ({}, None, (None, None, "chat_template.json")),
        ({"chat_template": "config"}, None, ("config", None, "tokenizer_config.json")),
        ({"chat_template": "config"}, "file", ("file", None, "chat_template.jinja")),
        (
            {"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]},
            None,
            ("d", "t", "tokenizer_config.json"),
        ),
        ({"chat_template": {"rag": "r", "default": "d"}}, None, ("d", None, "tokenizer_config.json")),
        ({"chat_template": [{"name": "rag", "template": "r"}]}, "file", ("file", None, "chat_template.jinja")),
    ],
)
def test_a_template_file_overrides_the_config_whose_default_is_taken(tmp_path: Path, settings, file, templates) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    if file is not None:
        (tmp_path / "chat_template.jinja").write_text(file)
    assert read_chat_templates(str(tmp_path)) == ChatTemplates(*templates)


def test_a_template_for_tools_may_stand_in_a_file_of_its_own(tmp_path: Path) -> None:
    named = {"default": "d", "tool_use": "t"}
    AutoTokenizer.from_pretrained(BUNDLED_MODEL, chat_template=named).save_pretrained(tmp_path)
    assert read_chat_templates(str(tmp_path)) == ChatTemplates("d", "t", "chat_template.jinja")


@pytest.mark.parametrize(
    "named", [[{"name": "tool_use", "template": "t"}, {"name": "rag", "template": "r"}], {"tool_use": "t", "rag": "r"}]
)
def test_named_templates_without_a_default_are_refused_by_their_names(tmp_path: Path, named: object) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    with pytest.raises(UnreadableModel, match="chat templates named tool_use, rag, and none named default"):
        read_chat_templates(str(tmp_path))


def test_json_in_a_prompt_is_not_escaped_for_html():
    assert compile_chat_template("{{ {'a': '<é>'} | tojson }}").render() == '{"a": "<é>"}'


def test_a_template_can_refuse_a_conversation():
    with pytest.raises(TemplateError, match="roles must alternate"):
        compile_chat_template("{{ raise_exception('roles must alternate') }}").render()


def test_a_template_cannot_reach_python():
    with pytest.raises(SecurityError):
        compile_chat_template("{{ ''.__class__.__mro__ }}").render()
