"""Answers end as the engine ends them: whole in their format, and their thinking within its budget."""

import json
from typing import Any

import pytest

from inference.local.loading.model_loading import load_model
from inference.prompts.prompt_format import load_prompt_format
from settings import BUNDLED_MODEL
from tests.integration.database_stage import Stage
from tests.integration.serving_worker import Serving


@pytest.mark.parametrize("joins", [False, True], ids=["static", "continuous"])
def test_an_answer_in_json_is_whole_at_its_limit_and_no_stop_string_cuts_it(stage: Stage, joins: bool):
    bundled = str(BUNDLED_MODEL)
    serving = Serving(stage, load_model(bundled), load_prompt_format(bundled), 10_000)
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]}
    body = {
        "format": {"type": "json_schema", "name": "n", "schema": schema},
        "stop": ["a", ":"],
        "sampling": {"temperature": 1.0, "seed": 1, "stop_token_ids": [*range(3, 200)]},
    }
    stage.request("r1", body=body, limit_tokens=30)
    try:
        serving.serve("r1", joins=joins)
    finally:
        serving.close()
    [(status, reason, tokens, text)] = stage.requests(
        "status", "finish_reason", "output_tokens", "output_text"
    ).values()
    assert (status, reason) == ("completed", "landed")
    assert tokens <= 30
    assert isinstance(json.loads(text)["a"], str)


@pytest.mark.parametrize("slices", [{"joins": True}, {"joins": False}, {"joins": False, "iteration_limit": 3}])
def test_thinking_ends_after_its_budget_and_its_tokens_are_counted(
    stage: Stage, serving: Serving, slices: dict[str, Any]
):
    form = {"opening": ":::", "closing": "..:", "opened": True}
    sampling = {"thinking_token_budget": 5}
    stage.request("chat", input="x", limit_tokens=20, body={"sampling": sampling, "answer_form": form})
    stage.request("plain", input="x", limit_tokens=20, body={"answer_form": form})
    while stage.requests("status")["chat"] != "incomplete":
        serving.serve("chat", "plain", **slices)
    answers = stage.requests("output_text", "output_tokens", "reasoning_tokens")
    assert answers["chat"][0][:8] == answers["plain"][0][:5] + "..:"
    assert answers["chat"][1:] == (20, 8)
    assert answers["plain"] == (serving.alone("x", 20), 20, 20)
