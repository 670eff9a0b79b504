"""The planner's rules: the policy to begin with, bounds and intervals, as the settings determine them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from celery_config import TICK_S
from models.tenants.budgets import tier_prices
from off_peak_hours import OffPeakHours
from scheduling.chosen_parameters import PUBLISHED_THRESHOLD
from scheduling.sharing.policy_factory import PolicySettings
from setting_formats import prices_in
from settings import Settings

# After this many ticks without a sign of a predictor, requests get their application's mean. With fewer ticks a busy
# predictor would count as dead: without beat it looks for requests every 1.5 ticks. With more ticks requests wait
# longer while there is no predictor. Not tuned.
MISSED_TICKS = 2


@dataclass(frozen=True, slots=True)
class PlannerRules:
    """A planner's settings; durations in seconds."""

    policy: str  # in force until `magnus policy set` names another
    settings: PolicySettings
    off_peak: OffPeakHours | None = None  # the only hours in which requests of the tier `off_peak` are served
    prices: Mapping[str, float] = field(default_factory=dict)  # of a GPU-second by tier; empty without prices
    alive_s: float = 4.0  # a worker without a heartbeat for this long gets no new batch
    on_time_s: float = 2.0  # a worker with an older heartbeat lacks CPU: a message that it left proves nothing
    lease_s: float = 10.0
    resend_s: float = 2.0  # a batch that was sent and not started for this long is sent again; not tuned
    fleet_memory_s: float = 120.0  # a worker is expected to come back until its last heartbeat is this old
    lookahead_s: float = 0.25  # the next batch is sent this long before its worker should become idle
    predictor_grace_s: float = 4.0  # after this long without a predictor, requests get their application's mean
    recover_every_s: float = 1.0
    snapshot_every_s: float = 0.5
    # A planner that has not renewed its lead for this long may be replaced; a planner that ends gives it up at once.
    # The value exceeds the 3.75 s between two steps without work and without beat, and the 2 s for which a frozen
    # broker may block a step. Together with the 3.75 s after which a stand-by looks again, it stays well below 15 s.
    lead_s: float = 6.0
    renew_every_s: float = 1.0
    # One step fetches at most this many requests: others wait for as long while a planner reads a million of them. With
    # 2,000 a step took half a second in front of 400,000, and a million five minutes. Not tuned otherwise.
    fetched_at_once: int = 8000
    shares_twins: bool = True  # equal requests are computed once


def planner_rules(settings: Settings) -> PlannerRules:
    """Returns the rules that these settings determine."""
    parameters = settings.parameters
    published, threshold = parameters.magnus == "published", parameters.wma_threshold
    return PlannerRules(
        policy=settings.policy,
        settings=PolicySettings(
            max_prompt_tokens=settings.assumed_prompt_tokens,
            max_output_tokens=settings.assumed_output_tokens,
            wma_threshold=PUBLISHED_THRESHOLD if published and threshold is None else threshold,
            slice_tokens=parameters.slice_tokens,
            bin_tokens=parameters.bin_tokens,
            favour=parameters.favour,
            background_share=parameters.background_share,
            reserves_upper=not published,
        ),
        off_peak=None if settings.off_peak is None else OffPeakHours.parse(settings.off_peak),
        prices=tier_prices(prices_in(settings.prices) if settings.prices else {}),
        alive_s=min(settings.lease_s, 8 * settings.heartbeat_s),
        on_time_s=4 * settings.heartbeat_s,
        lease_s=settings.lease_s,
        predictor_grace_s=MISSED_TICKS * TICK_S,
        shares_twins=parameters.twins == "shared",
    )
