"""Every policy by the name that MAGNUS_POLICY knows it by."""

from collections.abc import Callable
from dataclasses import dataclass

from scheduling.policies.baton import Baton
from scheduling.policies.ccb import ConservativeContinuous
from scheduling.policies.fusion.policy import Fusion
from scheduling.policies.magnus import FixedSize, MagnusPolicy
from scheduling.policies.scls import SliceLevel
from scheduling.policies.sequence import SequenceScheduling
from scheduling.policies.vanilla import Vanilla
from scheduling.policy import Policy


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Plain values that policies are made from; lengths in tokens, durations in seconds."""

    max_prompt_tokens: int = 1024  # Lmax
    max_output_tokens: int = 1024  # Gmax
    wma_threshold: int = 50_000  # Φ of Magnus's Algorithm 1
    slice_tokens: int = 128  # S of scls


class UnknownPolicy(Exception):
    """A policy name that does not exist, with those that do."""

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


def make_policy(name: str, settings: PolicySettings) -> Policy:
    """A new policy of this name; raises UnknownPolicy."""
    if name not in POLICIES:
        raise UnknownPolicy(name)
    return POLICIES[name](settings)
