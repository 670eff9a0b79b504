"""Checks a model for `magnus doctor --model`: how it would be served, how many rows fit. Loads no weights."""

import sys
from collections.abc import Iterator
from contextlib import suppress

import torch
from pydantic import ByteSize

from cli.checks.doctor_checks import Finding, answer_findings, split_finding
from cli.checks.startup_checks import adapter_problems, device_problems, model_problem
from inference.accelerator import chosen_device
from inference.engine_errors import InferenceError, ShownByLoading
from inference.local.kv.kv_budget import kv_budget_bytes, require_a_row
from inference.local.loading.decoding_check import ELSEWHERE
from inference.local.loading.model_outline import ModelOutline, outline_model
from inference.model_directory.adapter_files import read_adapters
from inference.model_directory.model_files import read_json
from settings import Settings

ADAPTER_REMEDY = "MAGNUS_ADAPTERS: take the adapter's directory out, or serve the model that it was trained for"
REMEDY = "name another model, of the families in docs/models.md"


def model_findings(settings: Settings) -> Iterator[Finding]:
    """Yields what the files of MAGNUS_MODEL say; a finding has a remedy if the model cannot be served."""
    problem, outline, unknown = model_problem(settings.model), None, None
    unserved = list(adapter_problems(settings))
    adapters = {} if settings.adapters is None or unserved else read_adapters(str(settings.adapters))
    missing = list(device_problems(settings.devices))
    device = torch.device("cpu" if missing else chosen_device(settings.devices.partition(",")[0].strip()))
    try:
        outline = outline_model(settings.model, device, settings.dtype, adapters.values())
    except ShownByLoading as error:
        unknown = str(error)
    except InferenceError as error:
        problem = problem or (str(error) if ELSEWHERE in str(error) else f"{error}; {REMEDY}")
    yield split_finding("model", problem, settings.model)
    with suppress(InferenceError):
        if family := read_json(settings.model, "config.json").get("model_type"):
            yield Finding("family", str(family))
    if unknown is not None and problem is None:
        yield Finding("layers", unknown)
    if outline is not None:
        yield from _as_served(settings, outline)
    if outline is not None or unknown is not None:
        yield from answer_findings(settings)
    yield from (split_finding("adapters", each) for each in unserved)
    if adapters and outline is not None:
        yield from (Finding("adapters", misfit, ADAPTER_REMEDY) for misfit in outline.misfits)
        if not outline.misfits:
            yield Finding("adapters", ", ".join(adapters))
    for each in missing:
        yield split_finding("devices", each)
    if outline is not None and not missing:
        yield from _memory(settings, outline, device)


def _as_served(settings: Settings, outline: ModelOutline) -> Iterator[Finding]:
    yield Finding("layers", outline.layers)
    by_setting = f"{settings.quantize} by MAGNUS_QUANTIZE" if settings.quantize else "none"
    yield Finding("quantisation", outline.quantisation or by_setting)
    ends = ", ".join(outline.end_tokens)
    yield Finding("end of sequence", ends or "none is named: answers run to their limit")
    yield Finding("positions", f"{outline.max_positions:,}" if outline.bounded else "no limit is named")


def _memory(settings: Settings, outline: ModelOutline, device: torch.device) -> Iterator[Finding]:
    """Yields Δ of Magnus Eq. (1), and the most rows that the budget Θ holds."""
    delta_bytes, dtype = outline.layout.token_bytes, str(outline.layout.dtype).removeprefix("torch.")
    weights = f"{ByteSize(outline.weight_bytes).human_readable()} of weights"
    if state_bytes := outline.layout.state_bytes:
        weights += f" and {ByteSize(state_bytes).human_readable()} of states for each row"
    yield Finding("memory a token", f"{delta_bytes / 2**10:,.2f} KiB (Δ) in {dtype}, beside {weights}")
    try:
        longest_bytes = outline.layout.row_bytes(outline.max_positions)
        whole_bytes = kv_budget_bytes(settings.kv_budget, device, longest_bytes, outline.weight_bytes)
        budget_bytes, most_rows = outline.layout.divided(whole_bytes)
        require_a_row(budget_bytes, delta_bytes)
    except InferenceError as error:
        yield Finding("rows that fit", str(error), "set MAGNUS_KV_BUDGET to another size, or auto")
        return
    prompt, answer = settings.assumed_prompt_tokens, settings.assumed_output_tokens
    tokens = min(prompt + answer, outline.max_positions)
    fit, longest_fit = (
        min(budget_bytes // row_bytes, most_rows or sys.maxsize)
        for row_bytes in (outline.layout.row_bytes(tokens), longest_bytes)
    )
    rows = f"{fit:,} of {prompt:,} + {answer:,} tokens"
    if tokens < prompt + answer:
        rows = f"{longest_fit:,} of the whole context"
    elif outline.bounded:
        rows += f", {longest_fit:,} of the whole context"
    budget = f"Θ = {ByteSize(budget_bytes).human_readable()} on {device} (MAGNUS_KV_BUDGET={settings.kv_budget})"
    yield Finding("rows that fit", f"{rows}; {budget}")
