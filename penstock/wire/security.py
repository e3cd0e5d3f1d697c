"""Who may call a container, and TLS between the driver, Spark's workers and containers.

Every call has a token, which only this container accepts. The run's secret is sent to nobody. The token is made of it
and of the container's incarnation, so that whoever gets the address of a container that has ended learns nothing that
another container accepts.

With TLS, nobody signs for anybody: each side is given the very certificate that the other one has. A container makes
its own, and its key does not leave the process. Driver and workers share one, whose key reaches the workers within
Spark's tasks. Certificates live for days. Both are new in each epoch, and once half their time has passed.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow.flight as flight

from penstock.errors import ConfigError

logger = logging.getLogger(__name__)

AUTH_HEADER = "authorization"


class TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls that do not carry the container's token. Says so once in the log, however many come.

    gRPC has received a call's first message by then: `gate.py` and TLS bound what strangers send.
    """

    def __init__(self, secret: str, incarnation: str) -> None:
        super().__init__()
        self._expected = _bearer(secret, incarnation)
        self._lock = threading.Lock()
        self.refused = 0

    def start_call(self, info: Any, headers: dict[str, list[str | bytes]]) -> None:
        given = headers.get(AUTH_HEADER) or [""]
        value = given[0] if isinstance(given[0], bytes) else given[0].encode()
        if len(given) == 1 and hmac.compare_digest(value, self._expected):
            return
        with self._lock:
            self.refused += 1
            first = self.refused == 1
        if first:
            logger.warning(
                "refused a call of method %s without this container's token; further ones are not logged", info.method
            )
        raise flight.FlightUnauthenticatedError("this call does not carry the container's token")


def call_options(secret: str, incarnation: str, timeout_s: float | None = None) -> flight.FlightCallOptions:
    headers = [(AUTH_HEADER.encode(), _bearer(secret, incarnation))]
    return flight.FlightCallOptions(timeout=timeout_s, headers=headers)


def _bearer(secret: str, incarnation: str) -> bytes:
    token = hmac.new(secret.encode(), b"penstock container " + incarnation.encode(), hashlib.sha256)
    return b"Bearer " + token.hexdigest().encode()


_NAME = "penstock"
"""Subject of every certificate. Containers have all kinds of addresses, so that no address is in it."""
_CLOCKS_DIFFER = datetime.timedelta(hours=1)
_VALID = datetime.timedelta(days=7)


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """A certificate and its private key, as PEM text."""

    certificate: str
    key: str = field(repr=False)
    made_at: float = field(default_factory=time.time)

    @property
    def is_old(self) -> bool:
        """True if it is time for another one."""
        return time.time() - self.made_at > _VALID.total_seconds() / 2

    @property
    def is_over(self) -> bool:
        """True if nobody accepts it any more."""
        return time.time() - self.made_at > _VALID.total_seconds()


def new_identity(side: Literal["server", "client"]) -> TlsIdentity:
    """A new key and a certificate that it signs itself. It is good for one side only, and signs no other certificate.

    Raises:
        ConfigError: the package `cryptography` cannot be loaded.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID
    except ImportError as error:
        raise ConfigError(
            f"TLS between hosts needs the package `cryptography`, which Penstock depends on ({error}): install it in "
            "the Python of driver and executors. `job.container.tls.enabled: false` sends everything in clear"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    usage = ExtendedKeyUsageOID.SERVER_AUTH if side == "server" else ExtendedKeyUsageOID.CLIENT_AUTH
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return TlsIdentity(certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode())


_NO_THREADS = "Server Threadpool Exhausted"
"""gRPC's word for a server that may start no more threads."""


def call_problem(error: BaseException) -> str:
    """The reason why a call to a container broke off, in words that say what to do where gRPC's do not.

    Example:
        >>> call_problem(OSError("RESOURCE_EXHAUSTED: Server Threadpool Exhausted"))[:45]
        'its host lets it start no more threads, so it'
    """
    text = str(error)
    if _NO_THREADS.lower() in text.lower():
        return (
            "its host lets it start no more threads, so it takes no more calls: raise the limit of processes there "
            f"(`ulimit -u`, or the `pids` of its control group). gRPC's words: {_NO_THREADS}"
        )
    return text


def connect(
    uri: str, certificate: str | None, tls: TlsIdentity | None, options: Sequence[tuple[str, int]] = ()
) -> flight.FlightClient:
    """A client for a container's socket or port. A port that speaks TLS must have the given certificate."""
    if tls is None or certificate is None or not uri.startswith("grpc+tls:"):
        return flight.connect(uri, generic_options=list(options))
    return flight.connect(
        uri,
        tls_root_certs=certificate,
        cert_chain=tls.certificate,
        private_key=tls.key,
        override_hostname=_NAME,
        generic_options=list(options),
    )
