"""The settings of a planner: policy, bounds and intervals."""

from dataclasses import dataclass

from scheduling.policies.policy_factory import PolicySettings


@dataclass(frozen=True, slots=True)
class PlannerRules:
    """A planner's settings; durations in seconds."""

    policy: str  # in force until `magnus policy set` names another
    settings: PolicySettings
    alive_s: float = 4.0  # a worker without a heartbeat for this long gets no new batch
    on_time_s: float = 2.0  # a worker with an older heartbeat lacks CPU, so untaken messages do not make it unreachable
    lease_s: float = 10.0
    resend_s: float = 2.0
    max_attempts: int = 3
    fleet_memory_s: float = 120.0  # a worker that was heard of within this time is expected back
    lookahead_s: float = 0.25  # the next batch is sent this long before its worker should become idle
    predictor_grace_s: float = 4.0  # after this long without a predictor, requests get their application's mean
    recover_every_s: float = 1.0
    snapshot_every_s: float = 0.5
    # A planner that has not renewed its lead for this long may be replaced; one that ends gives it up at once. It must
    # exceed the 3.75 s between two steps without work and without beat, and the 2 s for which a frozen broker may block
    # one; with the 3.75 s between two looks of a stand-by it stays well below 15 s.
    lead_s: float = 6.0
    renew_every_s: float = 1.0
