"""A proxy's header counts from the proxy's own addresses alone; groups give scopes; a refusal says what to ask for."""

import pytest
from werkzeug.datastructures import Headers

from setting_formats import networks_in, roles_in
from webapp.dashboard.company_sign_in import CompanySignIn, TrustedProxy
from webapp.dashboard.people import Person
from webapp.transport.repeated_headers import add_repeated

USER, GROUPS = "X-Forwarded-Email", "X-Forwarded-Groups"
NETWORKS = networks_in("10.0.0.7, 10.1.0.0/24, fd00::/64")
PROXY = TrustedProxy(NETWORKS, USER, GROUPS)
HEADERS = Headers({USER: "alice@example.com", GROUPS: "ops, staff"})


@pytest.mark.parametrize("peer", ["10.0.0.7", "10.1.0.200", "::ffff:10.0.0.7", "fd00::1"])
def test_a_trusted_proxy_names_the_person_and_their_groups(peer: str) -> None:
    assert PROXY.person(peer, HEADERS) == Person("alice@example.com (by the proxy)", ("ops", "staff"))


@pytest.mark.parametrize(
    "peer", ["10.0.0.8", "127.0.0.1", "::1", "::ffff:10.0.0.8", "fd00:0:0:1::1", "", None, "10.0.0"]
)
def test_the_header_of_anybody_else_is_ignored(peer: str | None) -> None:
    assert PROXY.person(peer, HEADERS) is None


@pytest.mark.parametrize("user", ["", "  ", "mallory@example.com,alice@example.com"])
def test_a_call_without_one_single_name_has_no_person(user: str) -> None:
    assert PROXY.person("10.0.0.7", Headers({USER: user, GROUPS: "ops"})) is None


@pytest.mark.parametrize("name", [USER, GROUPS])
def test_a_header_that_came_twice_is_believed_neither_time(name: str) -> None:
    sent = [*((one.upper(), value) for one, value in HEADERS), (name.upper(), "ops")]
    add_repeated(sent)
    assert PROXY.person("10.0.0.7", Headers(sent)) is None


def test_without_a_header_for_groups_the_name_is_the_only_group() -> None:
    by_name = TrustedProxy(NETWORKS, USER, None)
    person = by_name.person("10.0.0.7", HEADERS)
    assert person is not None
    assert person.groups == ("alice@example.com",)
    nobodys = PROXY.person("10.0.0.7", Headers({USER: "ops"}))  # a name that is a group's gives nothing
    assert nobodys is not None
    assert nobodys.groups == ()


def test_names_are_utf8_without_control_characters() -> None:
    person = PROXY.person("10.0.0.7", Headers({USER: "Zo\u00c3\u00ab\x00\x1b[31m", GROUPS: "k\u00c3\u00bcche"}))
    assert person == Person("Zoë[31m (by the proxy)", ("küche",))


def test_groups_add_their_scopes() -> None:
    company = CompanySignIn(None, None, roles_in("cn=ops,dc=example=operate, submit; staff=operate; staff=read;"))
    assert company.scopes_of(["cn=ops,dc=example", "staff"]) == {"operate", "submit", "read"}
    assert company.scopes_of(["Staff", "cn"]) == frozenset()


@pytest.mark.parametrize(
    "value",
    [
        "ops=operate, staff=operate",
        "ops=operate staff=read",
        "ops=operate,submit,staff=read",
        "ops==operate",
        "ops=operate,staff",
        "ops=operat",
        "ops:operate",
    ],
)
def test_a_mistyped_list_of_roles_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="separated by semicolons"):
        roles_in(value)


@pytest.mark.parametrize(
    "group", ["Ops, EMEA", r"cn=Smith\, Ann,dc=example", "cn=read,dc=example", "/ops", "a@b.example"]
)
def test_names_of_groups_may_have_commas_and_those_of_ldap_equals_signs(group: str) -> None:
    assert roles_in(f"{group}=operate") == {group: {"operate"}}


def test_a_refusal_names_the_person_their_groups_and_the_setting() -> None:
    refusal = CompanySignIn(None, None, roles_in("ops=operate")).refusal(Person("bob", ("a", "b")))
    for part in ("bob", "(a, b)", "MAGNUS_OPERATOR_ROLES", "operate"):
        assert part in refusal
    assert "ops" not in refusal
