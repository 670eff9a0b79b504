"""Checks the sign-in with a company's accounts for `magnus doctor`: the trusted proxies and the OpenID provider."""

from collections.abc import Iterator

from cli.checks.doctor_checks import Finding
from settings import Settings
from webapp.dashboard.company_sign_in import company_sign_in_of
from webapp.dashboard.people import ProviderAway

# Fewest prefix bits by IP version: an operator's own network is hardly larger than 10.0.0.0/8, or an IPv6 site's /48.
FEWEST_BITS = {4: 8, 6: 48}


def sign_in_findings(settings: Settings) -> Iterator[Finding]:
    """Yields whom MAGNUS_TRUSTED_PROXIES trusts, and whether the OpenID provider answers, where they are set."""
    company = company_sign_in_of(settings)
    if company.proxy is not None:
        wide = [one for one in company.proxy.networks if one.prefixlen < FEWEST_BITS[one.version]]
        remedy = "name the proxy's own addresses in MAGNUS_TRUSTED_PROXIES: who calls from one of these is any operator"
        yield Finding("trusted proxies", ", ".join(map(str, wide or company.proxy.networks)), remedy if wide else None)
    if company.provider is not None:
        try:
            company.provider.discover()
        except ProviderAway as error:
            yield Finding("OpenID provider", str(error), "correct MAGNUS_OIDC_ISSUER, or the network in between")
        else:
            yield Finding("OpenID provider", company.provider.issuer)
