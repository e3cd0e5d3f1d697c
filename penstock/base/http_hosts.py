"""Hosts on the network: their names as HTTP has them, and a limit for each host that is not known yet."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Generic, TypeVar

_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,253}))(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Authority:
    """A host, in lower case, with the port that was given."""

    host: str
    port: int | None

    @classmethod
    def parse(cls, text: str) -> Authority | None:
        """The value of a header `Host`; None unless it is `HOST` or `HOST:PORT` and nothing else.

        Example:
            >>> Authority.parse("[::1]:8450"), Authority.parse("127.0.0.1:8450.example.org")
            (Authority(host='::1', port=8450), None)
        """
        found = _AUTHORITY.fullmatch(text)
        if found is None:
            return None
        address, name, port = found.groups()
        if port is not None and not 0 < int(port) < 65536:
            return None
        if address is not None and not isinstance(_address(address), ipaddress.IPv6Address):
            return None
        return cls((address or name).lower(), None if port is None else int(port))


def is_loopback(host: str) -> bool:
    """True for addresses that only this host reaches.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost.example.org")
        (True, True, False)
    """
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


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
