"""Identifies people by an OpenID provider or a trusted proxy, and gives them the scopes of their groups."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING

import structlog
from werkzeug.datastructures import Headers

from setting_formats import Network, networks_in, roles_in
from settings import Settings
from webapp.dashboard.people import Person, printable
from webapp.transport.repeated_headers import came_twice

SHOWN_GROUPS = 10  # most groups named on the page that refuses a person; not tuned

if TYPE_CHECKING:
    from webapp.dashboard.openid_provider import OpenIdProvider

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TrustedProxy:
    """A proxy at which people sign in, and which names them in a header of each call that it passes on."""

    networks: tuple[Network, ...]
    user_header: str
    groups_header: str | None

    def person(self, peer: str | None, headers: Headers) -> Person | None:
        """Returns the person of a call from the address `peer`, or None without the header or from another address."""
        user = _text(headers.get(self.user_header, ""))
        if not user:
            return None
        if not self._trusts(peer):
            log.warning("proxy header ignored", peer=peer, header=self.user_header)
            return None
        twice = [name for name in (self.user_header, self.groups_header) if name and came_twice(headers, name)]
        if twice or "," in user:  # a client made up a header, and the proxy added its own
            log.warning("proxy header ignored", peer=peer, header=twice or self.user_header, reason="it came twice")
            return None
        given = user if self.groups_header is None else _text(headers.get(self.groups_header, ""))
        groups = tuple(group.strip() for group in given.split(",") if group.strip())
        return Person(f"{printable(user)} (by the proxy)", groups)

    def _trusts(self, peer: str | None) -> bool:
        try:
            address = ip_address(peer or "")
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:  # the socket listens on ::
            address = address.ipv4_mapped
        return any(address in network for network in self.networks)


@dataclass(frozen=True, slots=True)
class CompanySignIn:
    """The ways of signing in with an account of the company's, and the scopes by group."""

    provider: "OpenIdProvider | None"
    proxy: TrustedProxy | None
    roles: Mapping[str, frozenset[str]]

    def scopes_of(self, groups: Iterable[str]) -> frozenset[str]:
        """Returns the scopes that these groups have together."""
        return frozenset().union(*(self.roles.get(group, frozenset()) for group in groups))

    def refusal(self, person: Person) -> str:
        """Returns the message for somebody whose groups lack the scope `operate`: what to ask an administrator for."""
        shown = ", ".join(printable(group) for group in person.groups[:SHOWN_GROUPS]) or "none"
        more = ", …" if len(person.groups) > SHOWN_GROUPS else ""
        return (
            f"You are {person.name}, and none of your groups ({shown}{more}) may see this dashboard. Ask for one that "
            "MAGNUS_OPERATOR_ROLES gives the scope operate, or for an entry of yours there."
        )


def company_sign_in_of(settings: Settings) -> CompanySignIn:
    """Returns the ways of signing in that are configured."""
    provider, proxy = None, None
    if settings.oidc_issuer is not None:
        # imported here because authlib and cryptography take 0.1 s and 10 MiB, which only this way of signing in needs
        from webapp.dashboard.openid_provider import OpenIdProvider

        provider = OpenIdProvider(settings)
    if settings.proxy_user_header is not None:
        proxy = TrustedProxy(
            networks_in(settings.trusted_proxies or ""), settings.proxy_user_header, settings.proxy_groups_header
        )
    return CompanySignIn(provider, proxy, roles_in(settings.operator_roles or ""))


def _text(header: str) -> str:
    """Returns a header's value, which WSGI passes as Latin-1, as the UTF-8 that proxies send."""
    return header.encode("latin-1", "replace").decode("utf-8", "replace").strip()
