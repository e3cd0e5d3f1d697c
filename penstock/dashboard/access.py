"""Who may read pages, and who may change jobs. Pure."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""The headers of every answer. The charts set styles, but no script comes from anywhere else."""


def is_loopback(host: str) -> bool:
    """True for addresses that only this host reaches."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Refusal:
    """The status of an answer, and why."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one server. `host` is the address on which it listens.

    On a loopback address everybody on the host may read; from elsewhere the token is needed. Changes always need it.
    Nothing is kept in cookies, so a page of another site has no token to send.
    """

    host: str
    token: str

    def refuses(self, method: str, headers: Mapping[str, str], *, changes: bool) -> Refusal | None:
        """Why a request is refused; None if it is not.

        Args:
            method: the method of HTTP.
            headers: by names in lower case.
            changes: True if the request is to change a job.
        """
        name = headers.get("host", "")
        if is_loopback(self.host) and not is_loopback(_without_port(name)):
            # Otherwise a name that another site lets point to this host could read the pages.
            return Refusal(421, f"this server is not {name!r}: use the address that it printed")
        if (refusal := _foreign(name, headers)) is not None:
            return refusal
        if method == "POST" and headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            # A browser sends JSON of another site only if this server allows it, which it does not.
            return Refusal(415, "application/json is expected")
        if (changes or not is_loopback(self.host)) and not self._has_token(headers):
            return Refusal(401, "the token is needed that the dashboard printed when it started")
        return None

    def _has_token(self, headers: Mapping[str, str]) -> bool:
        given = headers.get("authorization", "").encode()
        return hmac.compare_digest(given, f"Bearer {self.token}".encode())


def _foreign(host: str, headers: Mapping[str, str]) -> Refusal | None:
    """Why a request is refused that a page of another site makes. None also for programs, which do not say so."""
    origin = headers.get("origin")
    is_same = origin is None or origin.partition("://")[2] == host
    if is_same and headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
        return None
    return Refusal(403, "requests of other sites are refused")


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
