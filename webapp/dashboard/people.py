"""Somebody who signed in elsewhere, and why a sign-in failed."""

from dataclasses import dataclass

MOST_CHARACTERS = 255  # the longest name in the audit; a provider's subjects have no more


class ProviderAway(Exception):
    """The provider does not answer, or not as a provider does; the message is for the person."""


class SignInRefused(Exception):
    """The provider refused the code, or its token is not for this sign-in; the message is for the person."""


@dataclass(frozen=True, slots=True)
class SignInAttempt:
    """A sign-in at the provider that has begun: only the browser with these values may finish it."""

    state: str
    nonce: str
    verifier: str


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who signed in elsewhere: the name for the audit, and the groups there."""

    name: str
    groups: tuple[str, ...]


def printable(text: str) -> str:
    """Returns a provider's or a proxy's text as one bounded line without control characters."""
    return "".join(one for one in text if one.isprintable())[:MOST_CHARACTERS]
