"""Connections of callers that are not known yet: few at a time, however many a host opens."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Generic, TypeVar

K = TypeVar("K")


def plain_address(text: str) -> IPv4Address | IPv6Address:
    """The address of a host as sockets give it, IPv4 where it is one.

    Example:
        >>> plain_address("::ffff:10.0.0.7"), plain_address("fe80::1%eth0")
        (IPv4Address('10.0.0.7'), IPv6Address('fe80::1'))
    """
    found = ip_address(text.partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found


class Crowd(Generic[K]):
    """The connections that wait to be known, the oldest first. Not thread-safe.

    When one too many comes, the oldest of the host with the most connections has to go. So a host that holds all places
    takes none from others, and a caller that is known soon gets in even from that host: the newest stays longest.
    """

    def __init__(self, most: int) -> None:
        """`most`: places."""
        self._most = most
        self._hosts: dict[K, object] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._hosts

    def add(self, key: K, address: str) -> K | None:
        """Add a connection from an address; returns the one that has lost its place."""
        self._hosts[key] = _host(address)
        return None if len(self._hosts) <= self._most else self.remove_one()

    def remove_one(self) -> K | None:
        """Remove the connection that has to go; returns it, or None if there is none."""
        if not self._hosts:
            return None
        (largest, _), *_ = Counter(self._hosts.values()).most_common(1)
        oldest = next(each for each, host in self._hosts.items() if host == largest)
        del self._hosts[oldest]
        return oldest

    def discard(self, key: K) -> bool:
        """Remove a connection that is known now, or has ended; returns whether it was here."""
        return self._hosts.pop(key, None) is not None


def _host(address: str) -> object:
    """The host of an address. All addresses of an IPv6 network of 64 bits count as one host, and so do all loopback
    addresses: a user of one of them can use the others."""
    found = plain_address(address)
    if found.is_loopback:
        return "this host"
    return found if isinstance(found, IPv4Address) else IPv6Network((int(found) >> 64 << 64, 64))
