"""Which addresses events may be sent to: what a URL must look like, and which IP addresses are public.

It resolves nothing. The sender checks what a name resolves to when it connects, and connects to that very address.
"""

import re
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

LONGEST_URL = 2000  # characters; servers take 8,000 and more, any bound far below a row's size does
# printable ASCII without what only confuses: userinfo, fragments, back-slashes, quotes
URL = re.compile(r"https?://[A-Za-z0-9.\-_\[\]:]+(?:[/?][!$-;=?-\[\]_a-z|~]*)?")
NAT64 = IPv6Network("64:ff9b::/96")  # its last four bytes are an IPv4 address

Address = IPv4Address | IPv6Address


class UnusableUrl(ValueError):
    """A webhook may not go to this URL; the message says why."""


def check_url(url: str, private: bool) -> None:
    """Raise UnusableUrl for what no event is sent to; `private`: addresses of this network and http:// are allowed."""
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
        return  # a name: the sender looks at what it resolves to
    if not is_public(address):
        raise UnusableUrl("must not be a private, loopback or link-local address")


def is_public(address: Address) -> bool:
    """Whether an address is one of the whole Internet, also of those that carry an IPv4 address within."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if address in NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast
