"""Makes a policy from the name that MAGNUS_POLICY selects it by."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from scheduling.policies.baton import Baton
from scheduling.policies.ccb import ConservativeContinuous
from scheduling.policies.chosen_parameters import PUBLISHED_SLICE, PUBLISHED_THRESHOLD
from scheduling.policies.fusion.fusion_policy import Fusion
from scheduling.policies.magnus import FixedSize, MagnusPolicy
from scheduling.policies.scls import SliceLevel
from scheduling.policies.sequence import BIN_TOKENS, SequenceScheduling
from scheduling.policies.vanilla import Vanilla
from scheduling.policies.wrapping.ability_groups import AbilityGroups
from scheduling.policies.wrapping.background_part import BACKGROUND_SHARE
from scheduling.policies.wrapping.bounded_batches import BoundedBatches
from scheduling.policies.wrapping.held_batches import HeldBatches
from scheduling.policies.wrapping.isolation import IsolatingPolicy
from scheduling.policies.wrapping.spare_capacity import SpareCapacity
from scheduling.policies.wrapping.tenant_shares import OffloadShares, TenantShares
from scheduling.policy import Policy


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The settings that policies are made from; lengths in tokens."""

    max_prompt_tokens: int = 1024  # Lmax
    max_output_tokens: int = 1024  # Gmax
    wma_threshold: int | None = PUBLISHED_THRESHOLD  # Φ of Magnus's Algorithm 1; None: chosen from lengths and costs
    slice_tokens: int | None = PUBLISHED_SLICE  # S of SCLS; None: chosen from lengths and costs
    bin_tokens: int | None = BIN_TOKENS  # bins of `sequence`; None: a fifth of the mean length, at most the paper's
    background_share: float = BACKGROUND_SHARE  # share of memory for background requests, see `background_part`
    reserves_upper: bool = True  # Magnus reserves memory for upper quantiles; False: for predictions, as in the paper


class UnknownPolicy(Exception):
    """There is no policy of this name; the message lists the existing ones."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"unknown policy {name}; there are {', '.join(sorted(POLICIES))}")


def _magnus(
    settings: PolicySettings, caps: bool = False, by_response_ratio: bool = True, longest_first: bool = False
) -> MagnusPolicy:
    fixed_size = FixedSize(settings.max_prompt_tokens, settings.max_output_tokens, caps)
    return MagnusPolicy(settings.wma_threshold, fixed_size, by_response_ratio, settings.reserves_upper, longest_first)


POLICIES: dict[str, Callable[[PolicySettings], Policy]] = {
    "vs": lambda settings: Vanilla(settings.max_prompt_tokens, settings.max_output_tokens),
    "vsq": lambda settings: Vanilla(settings.max_prompt_tokens, settings.max_output_tokens),
    "ccb": lambda settings: ConservativeContinuous(settings.max_prompt_tokens, settings.max_output_tokens),
    "glp": partial(_magnus, caps=True, by_response_ratio=False),
    "abp": partial(_magnus, by_response_ratio=False),
    "magnus": _magnus,
    "sequence": lambda settings: SequenceScheduling(
        bin_tokens=settings.bin_tokens or BIN_TOKENS, narrow_bins=settings.bin_tokens is None
    ),
    "scls": lambda settings: SliceLevel(settings.slice_tokens),
    "baton": lambda settings: Baton(),
    "fusion": lambda settings: Fusion(),
}


def make_policy(name: str, settings: PolicySettings) -> IsolatingPolicy:
    """Return a new policy of this name with all policies that wrap it; raise UnknownPolicy for an unknown name."""
    if name not in POLICIES:
        raise UnknownPolicy(name)
    by_ability, background = (
        partial(AbilityGroups, partial(make, name, settings)) for make in (_with_shares, _with_job_shares)
    )
    return IsolatingPolicy(SpareCapacity(by_ability, settings.background_share, background))


def _plain(name: str, settings: PolicySettings) -> Policy:
    return POLICIES[name](settings)


def _with_shares(name: str, settings: PolicySettings) -> Policy:
    """Return the policy, with tenants' shares of the fleet around it unless it shares the fleet out by itself."""
    plain = partial(_plain, name, settings)  # unlike an entry of POLICIES, it can be pickled with the policy
    if name == "fusion":
        return plain()
    return OffloadShares(plain) if plain().mode == "queue" else TenantShares(plain)


def _with_job_shares(name: str, settings: PolicySettings) -> Policy:
    """Return the policy for background requests: where batches run to completion, one for each job of each tenant."""
    plain = partial(_plain, name, settings)
    mode = plain().mode
    if mode == "continuous":
        return _with_shares(name, settings)
    make = partial(HeldBatches, plain) if mode == "queue" else partial(BoundedBatches, partial(_of_job, name, settings))
    return TenantShares(partial(TenantShares, make, attrgetter("job")))


def _of_job(name: str, settings: PolicySettings) -> Policy:
    """Return the policy for a job's lines: they should end soonest together, so `magnus` serves long batches first."""
    return _magnus(settings, longest_first=True) if name == "magnus" else _plain(name, settings)
