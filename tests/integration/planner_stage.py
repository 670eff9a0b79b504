"""The terms of a planner whose workers are never late, for tests that have no worker's process."""

from scheduling.policies.policy_factory import PolicySettings
from tasks.planning.planner_rules import PlannerRules

RULES = PlannerRules(policy="magnus", settings=PolicySettings(), lookahead_s=0.0, alive_s=3600.0, lease_s=3600.0)
