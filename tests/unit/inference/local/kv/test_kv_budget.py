"""How much memory an engine's cache may take."""

import pytest
import torch

from inference.engine_errors import BudgetTooLarge, UnreadableBudget
from inference.local.kv.kv_budget import CPU_BUDGET_BYTES, host_memory_bytes, kv_budget_bytes

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("configured", "nbytes"), [("auto", CPU_BUDGET_BYTES), ("20GiB", 20 * 2**30), ("1.5MB", 1_500_000), ("4096", 4096)]
)
def test_a_budget_is_as_configured_or_as_suits_the_device(configured, nbytes):
    assert kv_budget_bytes(configured, CPU) == nbytes


def test_on_a_cpu_a_prompt_of_the_models_whole_context_fits_as_far_as_the_machines_memory_allows():
    context = 256 * 2**20
    assert kv_budget_bytes("auto", CPU, context) == min(context, host_memory_bytes() // 8)
    assert kv_budget_bytes("auto", CPU, 2**60) == host_memory_bytes() // 8
    assert kv_budget_bytes("64MiB", CPU, context) == 64 * 2**20


@pytest.mark.parametrize("configured", ["20 gigs", "", "-"])
def test_what_is_no_size_is_refused(configured):
    with pytest.raises(UnreadableBudget, match="write for example 20GiB"):
        kv_budget_bytes(configured, CPU)


def test_more_than_the_machine_has_is_refused_before_anything_runs():
    assert kv_budget_bytes(str(host_memory_bytes()), CPU) == host_memory_bytes()
    with pytest.raises(BudgetTooLarge, match="is more than the"):
        kv_budget_bytes("1000TiB", CPU)
