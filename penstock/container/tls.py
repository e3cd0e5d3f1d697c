"""TLS between the driver, Spark's workers and containers, with a certificate that one run makes for itself.

Whoever has the run's private key belongs to the run: driver, workers and containers present the same certificate and
trust no other. The key reaches them as the run's secret does, within Spark's tasks.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow.flight as flight

from penstock.errors import ConfigError

_NAME = "penstock"
"""What the certificate is for. Containers have all kinds of addresses, so that no address is in it."""
_CLOCKS_DIFFER = datetime.timedelta(days=1)
_VALID = datetime.timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """A certificate and its private key, as PEM text."""

    certificate: str
    key: str = field(repr=False)


def new_identity() -> TlsIdentity:
    """A new key and a certificate that it signs itself.

    Raises:
        ConfigError: the package `cryptography` is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise ConfigError(
            "`job.container.tls.enabled` is true, which needs the package `cryptography` in the driver's Python: "
            "`pip install 'penstock[tls]'`"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
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
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return TlsIdentity(certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode())


def connect(uri: str, tls: TlsIdentity | None, options: Sequence[tuple[str, int]] = ()) -> flight.FlightClient:
    """A client for a container's socket or port. A port that speaks TLS must have the run's certificate."""
    if tls is None or not uri.startswith("grpc+tls:"):
        return flight.connect(uri, generic_options=list(options))
    return flight.connect(
        uri,
        tls_root_certs=tls.certificate,
        cert_chain=tls.certificate,
        private_key=tls.key,
        override_hostname=_NAME,
        generic_options=list(options),
    )
