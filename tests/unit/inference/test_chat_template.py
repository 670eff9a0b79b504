"""Which template a model has, and what templates may do."""

import pytest
from jinja2 import TemplateError
from jinja2.exceptions import SecurityError

from inference.chat_template import compile_chat_template, find_chat_template


@pytest.mark.parametrize(
    ("config", "template_file", "template"),
    [
        ({}, None, None),
        ({"chat_template": "config"}, None, "config"),
        ({"chat_template": "config"}, "file", "file"),
        ({"chat_template": [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]}, None, "d"),
        ({"chat_template": [{"name": "tools", "template": "t"}]}, None, None),
        ({"chat_template": {"tools": "t", "default": "d"}}, None, "d"),
    ],
)
def test_a_template_file_overrides_the_config_whose_default_is_taken(config, template_file, template):
    assert find_chat_template(config, template_file) == template


def test_json_in_a_prompt_is_not_escaped_for_html():
    assert compile_chat_template("{{ {'a': '<é>'} | tojson }}").render() == '{"a": "<é>"}'


def test_a_template_can_refuse_a_conversation():
    with pytest.raises(TemplateError, match="roles must alternate"):
        compile_chat_template("{{ raise_exception('roles must alternate') }}").render()


def test_a_template_cannot_reach_python():
    with pytest.raises(SecurityError):
        compile_chat_template("{{ ''.__class__.__mro__ }}").render()
