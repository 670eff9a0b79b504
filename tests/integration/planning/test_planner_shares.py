"""The planner on a real Postgres shares its workers among tenants by the weights that an operator has set."""

from collections import Counter

import pytest

from models.connections.session import make_sessions
from models.tenants import tenant_limits
from processes.planner_rules import PlannerRules
from scheduling.sharing.policy_factory import PolicySettings
from tasks.planning.leader import Leader
from tests.integration.database_stage import Stage


def set_weight(stage: Stage, tenant: str, weight: float) -> None:
    with make_sessions(stage.database).begin() as session:
        tenant_limits.change_tenant(session, tenant, {"weight": weight})


def served(stage: Stage, leader: Leader, batches: int) -> Counter[str]:
    """How many requests of each tenant are answered in `batches` steps, by a worker that holds two rows."""
    before = Counter(stage.requests("tenant", "status").values())
    for _ in range(batches):
        for batch_id, _worker in leader.step():
            stage.end_batch(batch_id)
    after = Counter(stage.requests("tenant", "status").values())
    return Counter({tenant: after[tenant, "completed"] - before[tenant, "completed"] for tenant in ("acme", "globex")})


@pytest.mark.parametrize("policy", ["magnus", "baton", "fusion", "vs"])
def test_a_weight_holds_from_the_planners_next_step_on(stage: Stage, policy: str):
    settings = PolicySettings(max_prompt_tokens=3, max_output_tokens=20)
    rules = PlannerRules(policy=policy, settings=settings, lookahead_s=0.0, alive_s=3600.0, lease_s=3600.0)
    leader = Leader(stage.database, rules)
    stage.worker(kv_tokens=50)
    for n in range(240):
        stage.request(f"r{n:03}", tenant="acme" if n % 2 else "globex", limit_tokens=20)
    equal = served(stage, leader, 8)
    assert abs(equal["acme"] - equal["globex"]) <= 2
    set_weight(stage, "acme", 3.0)
    weighted = served(stage, leader, 12)
    assert 2 <= weighted["acme"] / weighted["globex"] <= 4
    leader.resign()
