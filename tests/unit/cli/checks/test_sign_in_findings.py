"""The doctor warns of a trust that is too wide, and of a provider that does not answer."""

from typing import Any

import pytest

from cli.checks.sign_in_findings import sign_in_findings
from settings import Settings

PROXY: dict[str, Any] = {"proxy_user_header": "X-Forwarded-Email", "operator_roles": "ops=operate"}


@pytest.mark.parametrize("wide", ["0.0.0.0/0", "::/0", "10.0.0.7, 0.0.0.0/1, 128.0.0.0/1"])
def test_a_trust_in_everybody_is_warned_of(wide: str) -> None:
    (finding,) = sign_in_findings(Settings(trusted_proxies=wide, **PROXY))
    assert finding.remedy is not None
    assert "MAGNUS_TRUSTED_PROXIES" in finding.remedy
    assert "10.0.0.7" not in finding.found


def test_a_trust_in_the_proxys_own_network_is_not() -> None:
    (finding,) = sign_in_findings(Settings(trusted_proxies="10.0.0.0/8,::1", **PROXY))
    assert (finding.found, finding.remedy) == ("10.0.0.0/8, ::1/128", None)


def test_without_a_companys_sign_in_there_is_nothing_to_say() -> None:
    assert list(sign_in_findings(Settings())) == []


def test_a_provider_that_does_not_answer_is_told_with_a_remedy() -> None:
    (finding,) = sign_in_findings(
        Settings(
            oidc_issuer="http://127.0.0.1:1",
            oidc_client_id="magnus",
            public_url="http://127.0.0.1:8000",
            operator_roles="ops=operate",
        )
    )
    assert finding.found.startswith("127.0.0.1 does not answer")
    assert finding.remedy is not None
