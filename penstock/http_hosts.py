"""Names of hosts as HTTP has them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

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
