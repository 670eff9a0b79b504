"""The terms of a planner whose workers are never late, for tests that have no worker's process."""

from processes.planner_rules import PlannerRules
from scheduling.sharing.policy_factory import PolicySettings

RULES = PlannerRules(policy="magnus", settings=PolicySettings(), lookahead_s=0.0, alive_s=3600.0, lease_s=3600.0)
