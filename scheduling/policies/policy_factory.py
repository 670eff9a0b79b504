"""Makes a policy from the name that MAGNUS_POLICY selects it by."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from scheduling.policies.baton import Baton
from scheduling.policies.ccb import ConservativeContinuous
from scheduling.policies.fusion.policy import Fusion
from scheduling.policies.magnus import FixedSize, MagnusPolicy
from scheduling.policies.scls import SliceLevel
from scheduling.policies.sequence import SequenceScheduling
from scheduling.policies.slice_length import PUBLISHED_SLICE
from scheduling.policies.vanilla import Vanilla
from scheduling.policies.wma_threshold import PUBLISHED_THRESHOLD
from scheduling.policies.wrapping.ability_groups import AbilityGroups
from scheduling.policies.wrapping.isolation import IsolatingPolicy
from scheduling.policies.wrapping.offload_shares import OffloadShares
from scheduling.policies.wrapping.spare_capacity import BACKGROUND_SHARE, SpareCapacity
from scheduling.policies.wrapping.tenant_shares import TenantShares
from scheduling.policy import Policy


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The settings that policies are made from; lengths in tokens."""

    max_prompt_tokens: int = 1024  # Lmax
    max_output_tokens: int = 1024  # Gmax
    wma_threshold: int | None = PUBLISHED_THRESHOLD  # Φ of Magnus's Algorithm 1; None: chosen from lengths and costs
    slice_tokens: int | None = PUBLISHED_SLICE  # S of SCLS; None: chosen from lengths and costs
    background_share: float = BACKGROUND_SHARE  # of the memory that is not kept free for others


class UnknownPolicy(Exception):
    """There is no policy of this name; the message lists those that there are."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"unknown policy {name}; there are {', '.join(sorted(POLICIES))}")


def _vanilla(settings: PolicySettings) -> Policy:
    return Vanilla(settings.max_prompt_tokens, settings.max_output_tokens)


def _ccb(settings: PolicySettings) -> Policy:
    return ConservativeContinuous(settings.max_prompt_tokens, settings.max_output_tokens)


def _glp(settings: PolicySettings) -> Policy:
    fixed_size = FixedSize(settings.max_prompt_tokens, settings.max_output_tokens)
    return MagnusPolicy(settings.wma_threshold, fixed_size, by_response_ratio=False)


def _abp(settings: PolicySettings) -> Policy:
    return MagnusPolicy(settings.wma_threshold, by_response_ratio=False)


def _magnus(settings: PolicySettings) -> Policy:
    return MagnusPolicy(settings.wma_threshold)


def _sequence(settings: PolicySettings) -> Policy:
    return SequenceScheduling()


def _scls(settings: PolicySettings) -> Policy:
    return SliceLevel(settings.slice_tokens)


def _baton(settings: PolicySettings) -> Policy:
    return Baton()


def _fusion(settings: PolicySettings) -> Policy:
    return Fusion()


POLICIES: dict[str, Callable[[PolicySettings], Policy]] = {
    "vs": _vanilla,
    "vsq": _vanilla,
    "ccb": _ccb,
    "glp": _glp,
    "abp": _abp,
    "magnus": _magnus,
    "sequence": _sequence,
    "scls": _scls,
    "baton": _baton,
    "fusion": _fusion,
}


def make_policy(name: str, settings: PolicySettings) -> IsolatingPolicy:
    """A new policy of this name, which also serves apart what has to be, where it can be; raises UnknownPolicy."""
    if name not in POLICIES:
        raise UnknownPolicy(name)
    by_ability = partial(AbilityGroups, partial(_with_shares, name, settings))
    return IsolatingPolicy(SpareCapacity(by_ability, settings.background_share))


def _with_shares(name: str, settings: PolicySettings) -> Policy:
    """The policy, with tenants' shares of the fleet around it unless it shares out by itself."""
    if name == "fusion":
        return POLICIES[name](settings)
    shares = OffloadShares if POLICIES[name](settings).mode == "queue" else TenantShares
    return shares(partial(POLICIES[name], settings))
