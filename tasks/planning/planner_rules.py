"""The planner's rules: the policy to begin with, bounds and intervals, as the settings determine them."""

from dataclasses import dataclass

from scheduling.policies.chosen_parameters import PUBLISHED_THRESHOLD
from scheduling.policies.policy_factory import PolicySettings
from settings import Settings

# After this many ticks without a sign of a predictor requests get their application's mean. With fewer, a busy
# predictor would count as dead: without beat it looks for requests every 1.5 ticks. More delay requests while there is
# no predictor. Not tuned.
MISSED_TICKS = 2


@dataclass(frozen=True, slots=True)
class PlannerRules:
    """A planner's settings; durations in seconds."""

    policy: str  # in force until `magnus policy set` names another
    settings: PolicySettings
    alive_s: float = 4.0  # a worker without a heartbeat for this long gets no new batch
    on_time_s: float = 2.0  # with an older heartbeat a worker lacks CPU, so that an untaken message proves nothing
    lease_s: float = 10.0
    resend_s: float = 2.0
    max_attempts: int = 3
    fleet_memory_s: float = 120.0  # a worker whose last heartbeat is not older is expected to come back
    lookahead_s: float = 0.25  # the next batch is sent this long before its worker should become idle
    predictor_grace_s: float = 4.0  # after this long without a predictor, requests get their application's mean
    recover_every_s: float = 1.0
    snapshot_every_s: float = 0.5
    # A planner that has not renewed its lead for this long may be replaced; one that ends gives it up at once. It must
    # exceed the 3.75 s between two steps without work and without beat, and the 2 s for which a frozen broker may block
    # one. Together with the 3.75 s after which a stand-by looks again, it stays well below 15 s.
    lead_s: float = 6.0
    renew_every_s: float = 1.0
    # The most requests that one step fetches, so that a planner that begins with a million of them steps some seconds
    # later, not minutes: workers would run dry meanwhile, and a stand-by would take over. More take fewer steps. Not
    # tuned.
    fetched_at_once: int = 20_000


def planner_rules(settings: Settings) -> PlannerRules:
    """Returns the rules that these settings determine."""
    published = settings.magnus == "published"
    threshold = PUBLISHED_THRESHOLD if published and settings.wma_threshold is None else settings.wma_threshold
    return PlannerRules(
        policy=settings.policy,
        settings=PolicySettings(
            max_prompt_tokens=settings.assumed_prompt_tokens,
            max_output_tokens=settings.max_output_tokens,
            wma_threshold=threshold,
            slice_tokens=settings.slice_tokens,
            bin_tokens=settings.bin_tokens,
            background_share=settings.background_share,
            reserves_upper=not published,
        ),
        alive_s=min(settings.lease_s, 8 * settings.heartbeat_s),
        on_time_s=4 * settings.heartbeat_s,
        lease_s=settings.lease_s,
        resend_s=settings.resend_s,
        max_attempts=settings.max_attempts,
        predictor_grace_s=MISSED_TICKS * settings.tick_s,
    )
