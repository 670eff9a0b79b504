"""Which URLs events may go to: public ones, by https, unless the operator allows all."""

from ipaddress import ip_address

import pytest

from models.webhooks.webhook_urls import UnusableUrl, check_url, is_public

PUBLIC = [
    "https://example.com",
    "https://example.com:8443/hooks?a=b%20c&d=[e]",
    "https://[2606:4700::1]/x",
    "https://8.8.8.8/",
]
NO_URL = [
    "",
    "example.com/hook",
    "ftp://example.com/",
    "https://",
    "https:///path",
    "https://user:pass@example.com/",
    "https://example.com/#part",
    "https://example.com/a b",
    "https://example.com/\r\nHost: other",
    "https://example.com\\@10.0.0.1/",
    "https://exämple.com/",
    "https://example.com:99999/",
    "https://example.com:0/",
    "https://[::1/",
    "https://[nonsense]/",
    "https://example.com/" + "a" * 2000,
]
PRIVATE = [
    "https://127.0.0.1/",
    "https://10.1.2.3/",
    "https://192.168.0.1:8080/",
    "https://169.254.169.254/latest/meta-data",
    "https://0.0.0.0/",
    "https://[::1]/",
    "https://[fe80::1]/",
    "https://[fd00::1]/",
    "https://[::ffff:10.0.0.1]/",
    "https://224.0.0.1/",
    "http://example.com/",
]


@pytest.mark.parametrize("url", PUBLIC)
def test_a_public_address_is_taken(url: str) -> None:
    check_url(url, private=False)


@pytest.mark.parametrize("url", NO_URL)
@pytest.mark.parametrize("private", [True, False])
def test_what_is_no_plain_url_is_refused_whatever_is_allowed(url: str, private: bool) -> None:
    with pytest.raises(UnusableUrl):
        check_url(url, private)


@pytest.mark.parametrize("url", PRIVATE)
def test_an_address_of_this_network_is_taken_only_where_that_is_allowed(url: str) -> None:
    with pytest.raises(UnusableUrl):
        check_url(url, private=False)
    check_url(url, private=True)


@pytest.mark.parametrize(
    "address",
    [
        "100.64.0.1",  # carrier-grade NAT
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",  # 127.0.0.1 behind NAT64
        "64:ff9b::a9fe:a9fe",  # the metadata service behind NAT64
        "2002:7f00:1::",  # 6to4 of 127.0.0.1
        "2001:0:0:0:0:0:80ff:fffe",  # Teredo of 127.0.0.1
        "2001:0:7f00:1:0:0:f7f7:f7f7",  # Teredo of 8.8.8.8, by a server at 127.0.0.1
        "64:ff9b:1::808:808",  # NAT64 within a network, whatever is behind it
        "::7f00:1",  # compatible with IPv4
        "::ffff:0:7f00:1",  # translated
        "::5efe:a00:1",
        "2606:4700::5efe:a00:1",  # ISATAP of 10.0.0.1
        "2606:4700::200:5efe:a00:1",
        "2002:a9fe:a9fe::808:808",
        "fec0::1",  # site-local
        "fe80::1",
        "fc00::1",
        "100::1",  # discarded
        "2001:db8::1",
        "3fff::1",
        "5f00::1",
        "4000::1",
        "192.88.99.1",
        "192.0.0.1",
        "198.18.0.1",
        "240.0.0.1",
        "ff02::1",
        "ff0e::1",
        "::",
        "255.255.255.255",
    ],
)
def test_an_address_that_leads_inside_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "2606:4700::1111", "64:ff9b::101:101", "::ffff:8.8.8.8", "2002:808:808::1", "::808:808"]
)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(ip_address(address))
