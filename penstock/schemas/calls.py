"""Calls to a registry: each ends in time, and takes answers of a limited size."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from penstock.base.http_hosts import is_loopback

T = TypeVar("T")

ANSWER_BYTES: Final = 8 << 20
"""The largest answer that is read. Registries take schemas of a megabyte or less."""
SLOWEST_S = 60.0
"""The longest time of a call besides its attempts to connect."""
PATIENCE_S = 600.0
"""The time for which an error that may pass is waited for, if there is no other answer meanwhile."""
MAY_PASS: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of answers after which the same request may succeed."""
_MALFORMED: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Errors of an answer that is there, and is none of a registry."""
_MOST_LEFT = 8
_IDENTITY = ("", "identity")


class RefusedAnswerError(ValueError):
    """An answer that is not read."""


class Calls:
    """Makes the calls to one registry."""

    def __init__(self, client: Any, options: Mapping[str, Any]) -> None:
        """
        Args:
            client: of confluent-kafka.
            options: of that client.
        """
        session = client._rest_client.session  # noqa: SLF001 - nothing else has the answers as they come
        session.headers["Accept-Encoding"] = "identity"  # a compressed answer may be of any size
        session.event_hooks = {"response": [_read]}
        attempts = (float(options["max.retries"]) + 1) * len(str(options["url"]).split(","))
        self._deadline_s = attempts * (2 * float(options["timeout"]) + float(options["retries.max.wait.ms"]) / 1000)
        self._left: list[threading.Thread] = []
        self._since: dict[str, float] = {}

    def make(self, call: Callable[[], T]) -> T:
        """The result of a call. Raises whatever it raises, or TimeoutError."""
        self._left = [each for each in self._left if each.is_alive()]
        if len(self._left) >= _MOST_LEFT:
            raise TimeoutError("earlier calls have not ended yet")
        results: list[T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                results.append(call())
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="schema-registry", daemon=True)
        thread.start()
        limit_s = self._deadline_s + SLOWEST_S
        thread.join(limit_s)
        if errors:
            raise errors[0]
        if not results:
            self._left.append(thread)
            raise TimeoutError(f"its answer is not complete after {limit_s:.0f} s")
        return results[0]

    def may_pass(self, what: str, error: Exception) -> bool:
        """True if the same request may succeed later, and has not failed for too long.

        Args:
            what: the request.
            error: its failure.
        """
        status = status_of(error)
        if status is None:
            return not isinstance(error, _MALFORMED)
        if status not in MAY_PASS:
            return False
        now = time.monotonic()
        if len(self._since) >= 1000:
            del self._since[next(iter(self._since))]
        return now - min(self._since.setdefault(what, now), self._since.setdefault("", now)) < PATIENCE_S

    def succeeded(self, what: str) -> None:
        """Forget earlier failures of a request."""
        self._since.pop(what, None)
        self._since.pop("", None)


def status_of(error: Exception) -> int | None:
    """The status of an answer; None if there was none."""
    found = getattr(error, "http_status_code", None)
    return found if isinstance(found, int) else None


def text_of(error: Exception) -> str:
    """The text of an error, cut: a registry may answer with any."""
    text = str(getattr(error, "error_message", "") or error or type(error).__name__)
    return text if len(text) <= 500 else f"{text[:500]}..."


def plain_credentials(options: Mapping[str, str]) -> str | None:
    """The address to which the options send a password or a token without encryption; None if there is none.

    Example:
        >>> plain_credentials({"url": "http://registry:8081", "basic.auth.user.info": "a:b"})
        'registry:8081'
        >>> plain_credentials({"url": "http://127.0.0.1:8081", "basic.auth.user.info": "a:b"}) is None
        True
    """
    has_any = any(name.startswith(("basic.auth.user", "bearer.auth.")) for name in options)
    for url in options.get("url", "").split(","):
        place = urlsplit(url.strip())
        if place.scheme == "http" and (has_any or place.password) and not is_loopback(place.hostname or ""):
            return place.netloc.rpartition("@")[2]
    return None


def _read(response: Any) -> None:
    """Reads an answer, before the client does so without a limit."""
    if response.headers.get("Content-Encoding", "") not in _IDENTITY:
        raise RefusedAnswerError("the answer is compressed, though nobody asked for that")
    found = bytearray()
    for piece in response.iter_raw():
        found += piece
        if len(found) > ANSWER_BYTES:
            raise RefusedAnswerError(f"the answer has more than {ANSWER_BYTES:,} bytes")
    response._content = bytes(found)  # noqa: SLF001 - where `read` of the client leaves it
