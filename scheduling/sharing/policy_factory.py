"""Makes a policy from its name, by which MAGNUS_POLICY selects it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from scheduling.chosen_parameters import PUBLISHED_SLICE, PUBLISHED_THRESHOLD
from scheduling.policies.baton import Baton
from scheduling.policies.ccb import ConservativeContinuous
from scheduling.policies.fusion.fusion_policy import Fusion
from scheduling.policies.fusion.priority_key import FAVOURS, Favour
from scheduling.policies.magnus import FixedSize, MagnusPolicy
from scheduling.policies.scls import SliceLevel
from scheduling.policies.sequence import BIN_TOKENS, SequenceScheduling
from scheduling.policies.vanilla import Vanilla
from scheduling.policy import Policy
from scheduling.sharing.ability_groups import AbilityGroups
from scheduling.sharing.background.background_last import BackgroundLast
from scheduling.sharing.background.background_part import BACKGROUND_SHARE
from scheduling.sharing.background.spare_capacity import SpareCapacity
from scheduling.sharing.isolation import IsolatingPolicy
from scheduling.sharing.rebalancing import Rebalancing
from scheduling.sharing.tenant_shares import OffloadShares, TenantShares


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The settings of which policies are made; lengths in tokens."""

    max_prompt_tokens: int = 1024  # Lmax, the longest prompt
    max_output_tokens: int = 1024  # Gmax, the longest answer
    wma_threshold: int | None = PUBLISHED_THRESHOLD  # Φ of Magnus's Algorithm 1; None: chosen by lengths and costs
    slice_tokens: int | None = PUBLISHED_SLICE  # S of SCLS; None: chosen by lengths and costs
    bin_tokens: int | None = BIN_TOKENS  # the bins of `sequence`; None: a fifth of the mean length, at most BIN_TOKENS
    background_share: float = BACKGROUND_SHARE  # the share of memory for background requests, see `background_part`
    favour: str = "mean"  # what the order of `fusion` favours, a name in FAVOURS
    reserves_upper: bool = True  # Magnus reserves memory for upper quantiles; False: for medians, as in the paper


class UnknownPolicy(Exception):
    """There is no policy of this name; the message lists the existing ones."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"unknown policy {name}; there are {', '.join(sorted(POLICIES))}")


def _magnus(settings: PolicySettings, caps: bool = False, by_response_ratio: bool = True) -> MagnusPolicy:
    fixed_size = FixedSize(settings.max_prompt_tokens, settings.max_output_tokens, caps)
    return MagnusPolicy(settings.wma_threshold, fixed_size, by_response_ratio, settings.reserves_upper)


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
    "fusion": lambda settings: Fusion(FAVOURS[settings.favour]),
}


def make_policy(name: str, settings: PolicySettings) -> IsolatingPolicy:
    """Return a new policy of this name with all that shares the fleet; raise UnknownPolicy for an unknown name."""
    if name not in POLICIES:
        raise UnknownPolicy(name)
    make = partial(AbilityGroups, partial(_with_shares, name, settings))
    if _plain(name, settings).mode == "continuous":
        shared = SpareCapacity(make, settings.background_share)
        return IsolatingPolicy(Rebalancing(shared) if name == "fusion" else shared)
    return IsolatingPolicy(BackgroundLast(make))


def favour_of(name: str, settings: PolicySettings) -> Favour | None:
    """Return what the order of this policy favours; None if it does not order requests by the delay that they cause."""
    return FAVOURS[settings.favour] if name == "fusion" else None


def _plain(name: str, settings: PolicySettings) -> Policy:
    return POLICIES[name](settings)


def _with_shares(name: str, settings: PolicySettings) -> Policy:
    """Return the policy, wrapped in tenants' shares of the fleet unless it shares the fleet among tenants by itself."""
    plain = partial(_plain, name, settings)  # unlike an entry of POLICIES, it can be pickled with the policy
    if name == "fusion":
        return plain()
    return OffloadShares(plain) if plain().mode == "queue" else TenantShares(plain)
