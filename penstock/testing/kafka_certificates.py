"""Certificates of a test's broker: an authority, and a server and a client that it signs. Needs `cryptography`."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from penstock.testing.kafka_settings import Certificates

_VALID = datetime.timedelta(days=30)
_CLOCKS_DIFFER = datetime.timedelta(days=1)
_LOOPBACK = (x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")))


def new_certificates(folder: Path) -> Certificates:
    """Make an authority and its certificates in this folder. Only this user can read the private keys."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _signed("Penstock tests", authority_key, "Penstock tests", authority_key, authority=True)
    paths = Certificates(folder / "authority.pem", folder / "server.pem", folder / "client.pem")
    _write(paths.authority, _pem(authority))
    for path, name, also in ((paths.server, "localhost", _LOOPBACK), (paths.client, "client", ())):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _signed(name, key, "Penstock tests", authority_key, names=also)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        _write(path, private + _pem(certificate))
    return paths


def _signed(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    authority: bool = False,
    names: Sequence[x509.GeneralName] = (),
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, text: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text)
