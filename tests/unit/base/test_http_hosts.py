"""Names of hosts as HTTP has them."""

from __future__ import annotations

from penstock.base.http_hosts import Authority, is_loopback


def test_loopback_addresses() -> None:
    own = ["localhost", "127.0.0.1", "127.255.255.254", "::1"]
    others = ["0.0.0.0", "::", "", "localhost.evil", "[::1]", "10.0.0.1", "jobs.example", "127.0.0.1:80"]
    assert [is_loopback(each) for each in own] == [True] * len(own)
    assert [is_loopback(each) for each in others] == [False] * len(others)


def test_an_authority_is_read_as_it_is_written() -> None:
    assert Authority.parse("Jobs.Example:80") == Authority("jobs.example", 80)
    assert Authority.parse("[2001:DB8::1]") == Authority("2001:db8::1", None)
