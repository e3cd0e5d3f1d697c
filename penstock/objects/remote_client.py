"""Clients of cloud services: the retries, timeouts and environment of obstore."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, cast

from obstore import exceptions as obstore_errors
from obstore.store import from_url

from penstock.errors import ConfigError
from penstock.objects.remote_errors import reason

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig
    from obstore.store import ObjectStore as Obstore

RETRY_SECONDS = 10.0
"""The time for which a call is retried after a passing failure: no connection, a cut one, 5xx, too many requests."""

LARGE_BYTES = 1 << 20
"""Larger objects are written by a client that gives the body time to go out."""

_TIMEOUT = "300s"
"""The limit for one request with all of its body: 32 MB may go at 110 kB/s."""

_SILENCE = "20s"
"""A service that is silent for so long has hung. The time in which a request's body goes out counts, too."""

_PREFIXES = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}

# Options that are given to obstore replace those it would read from the environment, so they are read here.
_OPTIONS = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "http1_only",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "randomize_addresses",
    "read_timeout",
    "timeout",
    "user_agent",
)


@dataclass(frozen=True, slots=True)
class RemoteClients:
    """Two clients of one store: one that notices soon that a service has hung, one for writing large objects."""

    quick: Obstore
    patient: Obstore


def open_clients(url: str, environ: Mapping[str, str] | None = None) -> RemoteClients:
    """Clients of the store at a URL; no request is made yet.

    Raises ConfigError if obstore cannot make a client of the URL and the environment.
    """
    environ = os.environ if environ is None else environ
    prefix = _PREFIXES[url.partition("://")[0]]
    given = {name: environ[key] for name in _OPTIONS if (key := f"{prefix}_{name.upper()}") in environ}
    patient = {"timeout": _TIMEOUT, **given}
    quick = {"read_timeout": _SILENCE, **patient}
    try:
        return RemoteClients(_open(url, quick), _open(url, patient))
    except (obstore_errors.BaseError, ValueError) as error:
        raise ConfigError(
            f"`{url}` cannot be opened as an object store: {reason(error)}. Look at the variables {prefix}_* of the "
            "environment"
        ) from error


def _open(url: str, options: Mapping[str, str]) -> Obstore:
    """obstore accepts options as text, too, as it does from the environment."""
    return from_url(url, client_options=cast("ClientConfig", dict(options)), retry_config=_retries())


def _retries() -> RetryConfig:
    """Limited by time, not by a number of tries. Pauses stay short, so that a service that is back is noticed soon."""
    pauses = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2}
    return cast(
        "RetryConfig",
        {"max_retries": 1000, "retry_timeout": timedelta(seconds=RETRY_SECONDS), "backoff": pauses},
    )
