"""Checks where events may be sent: the form of a URL, and whether an address is a public one."""

import re
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

LONGEST_URL = 2000  # characters; servers take 8,000 and more, and any bound far below a row's size works
# printable ASCII without userinfo, fragments, back-slashes and quotes, which senders and servers may read differently
URL = re.compile(r"https?://[A-Za-z0-9.\-_\[\]:]+(?:[/?][!$-;=?-\[\]_a-z|~]*)?")

Address = IPv4Address | IPv6Address

# IPv6 prefixes with which the last 32 bits are an IPv4 address: compatible, mapped (RFC 4291), translated (RFC 7915),
# and NAT64's well-known prefix (RFC 6052). The prefixes that networks choose for their own NAT64 cannot be known.
ENDS_WITH_IPV4 = [IPv6Network(prefix) for prefix in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")]
ISATAP = 0x5EFE  # bits 32 to 63 of the address' end, with or without the bit for "universal" (RFC 5214)
UNIVERSAL = 0x02000000
GLOBAL_UNICAST = IPv6Network("2000::/3")
# Networks that are not public, though some versions of `ipaddress` call them global: 6to4's relays, documentation.
NOT_PUBLIC: list[IPv4Network | IPv6Network] = [IPv4Network("192.88.99.0/24"), IPv6Network("3fff::/20")]


class UnusableUrl(ValueError):
    """A webhook may not go to this URL; the message says why."""


def check_url(url: str, private: bool) -> None:
    """Raises UnusableUrl if no event may be sent to this URL; `private` allows http:// and this network's addresses."""
    if len(url) > LONGEST_URL or not URL.fullmatch(url):
        raise UnusableUrl("must be an absolute https:// URL without user, fragment or spaces, of 2,000 characters")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UnusableUrl(f"is no URL: {error}") from error
    if not host or port == 0:
        raise UnusableUrl("must name a host, and a port that there is")
    if private:
        return
    if parts.scheme != "https":
        raise UnusableUrl("must begin with https://")
    try:
        address = ip_address(host)
    except ValueError:
        return  # the host is a name, and the sender checks the address to which the name resolves
    if not is_public(address):
        raise UnusableUrl("must not be a private, loopback or link-local address")


def is_public(address: Address) -> bool:
    """Returns whether an address and every IPv4 address embedded in it (gateways may lead there) are global unicast."""
    if address.is_multicast or any(address in network for network in NOT_PUBLIC):
        return False
    if isinstance(address, IPv4Address):
        return address.is_global
    embedded = list(_embedded(address))
    if not all(is_public(inner) for inner in embedded):
        return False
    # `ipaddress` calls no address global that only embeds an IPv4 address; the embedded address alone then decides
    return bool(embedded) if address not in GLOBAL_UNICAST else address.is_global or address.teredo is not None


def _embedded(address: IPv6Address) -> Iterator[IPv4Address]:
    """Yields the IPv4 addresses within an IPv6 address."""
    end = IPv4Address(int(address) & 0xFFFFFFFF)
    if any(address in network for network in ENDS_WITH_IPV4):
        yield end
    if (int(address) >> 32) & 0xFFFFFFFF & ~UNIVERSAL == ISATAP:
        yield end
    if address.sixtofour:
        yield address.sixtofour
    if address.teredo:
        yield from address.teredo
