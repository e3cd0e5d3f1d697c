"""Requests as their headers arrive: who is let in."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dashboard.access import Access, RawHeaders

pytestmark = pytest.mark.attack

TOKEN = "a-token-of-this-test"
LOCAL = Access("127.0.0.1", TOKEN)
OPEN = Access("0.0.0.0", TOKEN)
OWN_HOSTS = ["127.0.0.1:8450", "127.0.0.1", "localhost:8450", "LOCALHOST", "[::1]:8450", "[::1]", "127.9.9.9:1"]
FOREIGN_HOSTS = ["evil.example", "evil.example:8450", "localhost.evil", "127.0.0.1.evil.example:8450", "10.0.0.1:8450"]
FOREIGN_HOSTS += ["[2001:db8::1]:8450", "0.0.0.0:8450", "[::]", "localhost.", "127.1", "2130706433", "0x7f.0.0.1"]
NO_HOSTS = ["", " ", ":8450", "127.0.0.1:8450.evil.example", "[::1].evil", "[::1", "::1", "::1:8450", "[127.0.0.1]"]
NO_HOSTS += ["me@127.0.0.1:8450", "127.0.0.1:8450@evil.example", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:-1"]
NO_HOSTS += ["127.0.0.1:", "127.0.0.1:+80", "127.0.0.1:٨٠", "127.0.0.1:8450/", "127.0.0.1/..", "127.0.0.1,evil.example"]
NO_HOSTS += ["127.0.0.1 evil.example", "127.0.0.1\t", "127.0.0.1\n", "127.0.0.1#", "127.0.0.1?", "127.0.0.1%00"]
NO_HOSTS += ["[::1%25eth0]:8450", "[::1]8450", "http://127.0.0.1:8450", "a" * 254, "127.0.0.1:000008450", "[]", "[:]"]


def headers(host: str | None = "127.0.0.1:8450", *, token: str | None = TOKEN, **more: str) -> RawHeaders:
    found = [] if host is None else [(b"host", host.encode("utf-8"))]
    if token is not None:
        found.append((b"authorization", f"Bearer {token}".encode()))
    return [*found, *((name.replace("_", "-").encode(), value.encode()) for name, value in more.items())]


def status(access: Access, sent: RawHeaders, method: str = "GET") -> int:
    refused = access.refuses(method, sent)
    return 200 if refused is None else refused.status


def test_only_a_name_of_this_host_is_served_on_a_loopback_address() -> None:
    for host in OWN_HOSTS:
        assert status(LOCAL, headers(host)) == 200, host
    for host in FOREIGN_HOSTS:
        assert status(LOCAL, headers(host)) == 421, host
        assert status(OPEN, headers(host)) == 200, "a name or an address of a host that is open to others"
    for host in NO_HOSTS:
        assert (status(LOCAL, headers(host)), status(OPEN, headers(host))) == (400, 400), host


def test_one_host_and_no_more() -> None:
    own = (b"host", b"127.0.0.1:8450")
    for more in (own, (b"host", b"evil.example"), (b"host", b"")):
        assert status(LOCAL, [own, more, *headers(None)]) == 400
        assert status(LOCAL, [more, own, *headers(None)]) == 400
    assert status(LOCAL, headers(None)) == 400


@given(st.text("01279.:[]@%/-elvocahstx\\ \t#,", max_size=30))
def test_whatever_is_let_in_is_a_name_of_this_host_and_at_most_a_port(host: str) -> None:
    if status(LOCAL, headers(host)) != 200:
        return
    name, port = host, ""
    if not host.endswith("]"):
        name, colon, port = host.rpartition(":")
        name, port = (name, port) if colon else (host, "")
    bare = name.removeprefix("[").removesuffix("]")
    assert bare.lower() == "localhost" or ipaddress.ip_address(bare).is_loopback
    assert (":" in bare) == name.startswith("[")
    assert not port or 0 < int(port) < 65536
    assert set(port) <= set("0123456789")


def test_pages_of_other_sites_are_refused() -> None:
    own = "http://127.0.0.1:8450"
    assert status(LOCAL, headers(origin=own)) == 200
    assert status(OPEN, headers("jobs.example", origin="https://jobs.example")) == 200, "behind a proxy with TLS"
    assert status(LOCAL, headers("LocalHost:8450", origin="http://localhost:8450")) == 200
    others = ["null", "", "http://evil.example", "http://127.0.0.1:8451", "http://127.0.0.1", f"{own}.evil.example"]
    others += [f"{own}/", f"{own}@evil.example", "http://me@127.0.0.1:8450", "//127.0.0.1:8450", "127.0.0.1:8450"]
    others += ["evil://127.0.0.1:8450", "file://127.0.0.1:8450", f"{own} http://evil.example", f" {own}", "http://"]
    others += ["http://localhost:8450", "http://[::1]:8450", f"{own}\n"]
    for origin in others:
        assert status(LOCAL, headers(origin=origin)) == 403, origin
    assert status(LOCAL, [*headers(origin=own), (b"origin", b"http://evil.example")]) == 403
    for site, expected in (("same-origin", 200), ("none", 200), ("same-site", 403), ("cross-site", 403), ("", 403)):
        assert status(LOCAL, headers(sec_fetch_site=site)) == expected
    assert status(LOCAL, [*headers(sec_fetch_site="none"), (b"sec-fetch-site", b"cross-site")]) == 403


@pytest.mark.parametrize("access", [LOCAL, OPEN])
def test_the_token_is_needed_everywhere(access: Access) -> None:
    for sent in (
        "",
        TOKEN,
        f"bearer {TOKEN}",
        f"Bearer {TOKEN} ",
        f"Bearer  {TOKEN}",
        f"Bearer {TOKEN[:-1]}",
        "Bearer ",
    ):
        wrong = [(b"host", b"localhost"), (b"authorization", sent.encode())]
        assert (status(access, wrong), access.knows(wrong)) == (401, False), sent
    twice = [*headers(), (b"authorization", f"Bearer {TOKEN}".encode())]
    assert (status(access, twice), access.knows(twice)) == (401, False)
    beyond = [(b"host", b"localhost"), (b"authorization", b"Bearer \xff\xfe\x00")]
    assert (status(access, beyond), access.knows(beyond)) == (401, False)
    assert status(access, headers(token=None)) == 401
    assert (status(access, headers()), access.knows(headers())) == (200, True)


def test_a_form_of_another_site_cannot_be_json() -> None:
    kinds = {"application/json": 200, "application/json; charset=utf-8": 200, "text/plain": 415, "": 415}
    kinds |= {"text/plain;application/json": 415, "multipart/form-data": 415}
    for kind, expected in kinds.items():
        assert status(LOCAL, headers(content_type=kind), "POST") == expected
    assert status(LOCAL, headers(), "POST") == 415
    two = [*headers(content_type="application/json"), (b"content-type", b"text/plain")]
    assert status(LOCAL, two, "POST") == 415
