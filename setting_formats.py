"""The forms that values of settings must have, as types: each check returns the value, or says how to write it."""

import math
import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import StringConstraints
from pydantic.functional_validators import AfterValidator

from off_peak_hours import OffPeakHours
from scheduling.request import TIER_LEVELS

ROLE_SCOPES = frozenset({"operate", "submit", "read"})  # as `magnus keys create --scopes` takes them
# A group's name: of LDAP, where each part has an equals sign, or without any. A comma in place of `;` is thus refused.
NAME_OF_GROUP = re.compile(r"[^=]+|[^=,]+=(?!(?:operate|submit|read)\s)(?:\\.|[^,=])+(,[^=,]+=(?:\\.|[^,=])+)*")
LOOPBACK = ("localhost", "127.0.0.1", "::1")

# The further settings that each of these settings needs.
NEEDS: dict[str, tuple[str, ...]] = {
    "oidc_issuer": ("oidc_client_id", "public_url", "operator_roles"),
    "oidc_client_id": ("oidc_issuer",),
    "proxy_user_header": ("trusted_proxies", "operator_roles"),
    "proxy_groups_header": ("proxy_user_header",),
    "trusted_proxies": ("proxy_user_header",),
}

Network = IPv4Network | IPv6Network


def listed(value: str | None) -> list[str]:
    """Returns the parts of a comma-separated value, without empty ones."""
    return [part for each in (value or "").split(",") if (part := each.strip())]


def postgres_url(value: str) -> str:
    """Checks the URL of a database."""
    if not re.match(r"postgres(ql)?(\+psycopg2?)?://", value):
        raise ValueError("only Postgres will do: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE")
    return _with_port(value)


def redis_url(value: str) -> str:
    """Checks the URL of a broker."""
    if value.partition(":")[0] in ("sentinel", "redis+sentinel"):
        raise ValueError("Sentinel is not supported: give the address of the primary, for example a proxy's")
    if not re.match(r"(rediss?://.|unix:///.)", value):
        raise ValueError("write redis://:PASSWORD@HOST:PORT/NUMBER, rediss://… for TLS, or unix:///PATH")
    return _with_port(value)


def http_urls(value: str) -> str:
    """Checks comma-separated addresses of servers."""
    for url in value.split(","):
        if url.strip() and not re.match(r"https?://[^/]", url.strip()):
            raise ValueError("write the addresses with http:// or https://, separated by commas")
        _with_port(url.strip())
    return value


def secure_url(value: str) -> str:
    """Checks an address over which codes of sign-ins and cookies travel."""
    parts = urlsplit(_with_port(value))
    secure = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)
    if not secure or not parts.hostname or parts.query or parts.fragment or parts.username is not None:
        raise ValueError("write an address with https://; http:// is for this host alone (localhost)")
    return value


def secure_origin(value: str) -> str:
    """Checks the address of a whole site; returns it without a slash at its end."""
    if urlsplit(secure_url(value)).path not in ("", "/"):
        raise ValueError("write scheme, host and port alone, because Magnus is served at the root of its site")
    return value.rstrip("/")


def off_peak(value: str) -> str:
    """Checks ranges of hours and their time zone."""
    OffPeakHours.parse(value)
    return value


def price_list(value: str) -> str:
    """Checks the price of a GPU-hour and the factors of tiers."""
    prices_in(value)
    return value


def prices_in(value: str) -> dict[str, float]:
    """Returns the numbers by name of `gpu_hour=PRICE,TIER=FACTOR`; raises ValueError."""
    try:
        named = {name.strip(): float(number) for name, _, number in (part.partition("=") for part in listed(value))}
    except ValueError:
        named = {}
    if "gpu_hour" not in named or not all(0 <= number < math.inf for number in named.values()):
        raise ValueError("write the price of a GPU-hour, and factors of tiers: gpu_hour=2.50,priority=2,flex=0.4")
    if unknown := named.keys() - {"gpu_hour", *TIER_LEVELS}:
        raise ValueError(f"there is no service tier {min(unknown)}; there are {', '.join(TIER_LEVELS)}")
    return named


def byte_size(value: str) -> str:
    """Checks a size with its unit, or `auto`."""
    if value != "auto" and not re.fullmatch(r"(?i)\s*0*[1-9]\d*(\.\d+)?\s*[kmgt]i?b\s*", value):
        unit = f": did you mean {value.strip()}GiB?" if value.strip().isdigit() else ""
        raise ValueError(f"write a size with its unit, for example 20GiB or 512MiB, or auto{unit}")
    return value


def device_list(value: str) -> str:
    """Checks comma-separated devices, or `auto`."""
    if not re.fullmatch(r"\s*auto\s*|(\s*(cpu|mps|cuda(:\d+)?)\s*(,|$))+", value):
        raise ValueError("write auto, cpu, or CUDA devices, for example cuda:0,cuda:1")
    return value


def role_list(value: str) -> str:
    """Checks the scopes of operators by group."""
    if not any("operate" in scopes for scopes in roles_in(value).values()):
        raise ValueError("nobody could sign in: give at least one group the scope operate")
    return value


def roles_in(value: str) -> dict[str, frozenset[str]]:
    """Returns the scopes by group of `GROUP=SCOPE,SCOPE; GROUP=SCOPE`; raises ValueError."""
    roles: dict[str, frozenset[str]] = {}
    for entry in filter(str.strip, value.split(";")):
        group, _, scopes = entry.rpartition("=")  # at the last sign, because names of LDAP have some as well
        named = frozenset(scope.strip() for scope in scopes.split(","))
        if not NAME_OF_GROUP.fullmatch(group.strip()) or not named <= ROLE_SCOPES:
            raise ValueError("write GROUP=SCOPES, separated by semicolons: ops=operate,submit,read; staff=operate")
        roles[group.strip()] = roles.get(group.strip(), frozenset()) | named
    return roles


def network_list(value: str) -> str:
    """Checks comma-separated addresses and networks."""
    networks_in(value)
    return value


def networks_in(value: str) -> tuple[Network, ...]:
    """Returns the networks of `ADDRESS, ADDRESS/BITS`; raises ValueError."""
    try:
        return tuple(map(ip_network, listed(value)))
    except ValueError as error:
        raise ValueError(f"write addresses and networks, for example 10.0.0.7, 10.1.0.0/24: {error}") from error


def _with_port(url: str) -> str:
    """Returns the URL; raises ValueError if its port is not a number. The driver checks a list of hosts."""
    if "," not in url:
        try:
            urlsplit(url).port  # noqa: B018
        except ValueError as error:
            raise ValueError(f"its port is no number between 0 and 65535: {error}") from error
    return url


PostgresUrl = Annotated[str, AfterValidator(postgres_url)]
RedisUrl = Annotated[str, AfterValidator(redis_url)]
HttpUrls = Annotated[str, AfterValidator(http_urls)]
SecureUrl = Annotated[str, AfterValidator(secure_url)]
SecureOrigin = Annotated[str, AfterValidator(secure_origin)]
ByteSize = Annotated[str, AfterValidator(byte_size)]
DeviceList = Annotated[str, AfterValidator(device_list)]
OffPeak = Annotated[str, AfterValidator(off_peak)]
PriceList = Annotated[str, AfterValidator(price_list)]
RoleList = Annotated[str, AfterValidator(role_list)]
NetworkList = Annotated[str, AfterValidator(network_list)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]+$")]
