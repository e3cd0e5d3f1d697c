"""The valid values of librdkafka's properties. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_RANGES = {
    (-1, 12): "compression.level",
    (-1, 3_600_000): "topic.metadata.refresh.interval.ms",
    (0, 7): "log_level",
    (0, 1_000): "topic.metadata.refresh.fast.cnt",
    (0, 300_000): "fetch.error.backoff.ms fetch.queue.backoff.ms fetch.wait.max.ms",
    (0, 900_000): "linger.ms queue.buffering.max.ms",
    (0, 1_000_000): "socket.max.fails",
    (
        0,
        3_600_000,
    ): "reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms topic.metadata.propagation.max.ms",
    (0, 86_400_000): "broker.address.ttl sasl.kerberos.min.time.before.relogin statistics.interval.ms",
    (0, 100_000_000): "socket.receive.buffer.bytes socket.send.buffer.bytes",
    (0, 604_800_000): "api.version.fallback.ms",
    (0, 1_000_000_000): "message.copy.max.bytes",
    (0, 2_147_483_135): "fetch.max.bytes",
    (
        0,
        2_147_483_647,
    ): "connections.max.idle.ms delivery.timeout.ms message.send.max.retries message.timeout.ms "
    "metadata.recovery.rebootstrap.trigger.ms queue.buffering.max.messages retries "
    "sasl.oauthbearer.assertion.claim.nbf.seconds",
    (1, 60_000): "socket.blocking.max.ms topic.metadata.refresh.fast.interval.ms",
    (1, 300_000): "api.version.request.timeout.ms retry.backoff.max.ms retry.backoff.ms",
    (1, 900_000): "request.timeout.ms",
    (
        1,
        1_000_000,
    ): "batch.num.messages max.in.flight max.in.flight.requests.per.connection queue.buffering.backpressure.threshold",
    (1, 2_097_151): "queued.max.messages.kbytes",
    (1, 10_000_000): "queued.min.messages",
    (1, 86_400_000): "metadata.max.age.ms",
    (1, 1_000_000_000): "fetch.message.max.bytes max.partition.fetch.bytes",
    (1, 2_147_483_647): "batch.size queue.buffering.max.kbytes sasl.oauthbearer.assertion.claim.exp.seconds",
    (10, 300_000): "socket.timeout.ms",
    (1_000, 1_000_000_000): "message.max.bytes",
    (1_000, 2_147_483_647): "receive.message.max.bytes socket.connection.setup.timeout.ms transaction.timeout.ms",
    (1, 100_000_000): "fetch.min.bytes",
}
RANGES: Mapping[str, tuple[int, int]] = {name: limits for limits, names in _RANGES.items() for name in names.split()}
"""Whole numbers, by the property's name: the least and the largest one."""
FRACTIONS = frozenset({"linger.ms", "queue.buffering.max.ms"})
CHOICES: Mapping[str, tuple[str, ...]] = {
    name: tuple(values.split())
    for name, values in {
        "broker.address.family": "any v4 v6",
        "client.dns.lookup": "use_all_dns_ips resolve_canonical_bootstrap_servers_only",
        "compression.codec": "none gzip snappy lz4 zstd",
        "compression.type": "none gzip snappy lz4 zstd",
        "metadata.recovery.strategy": "none rebootstrap",
        "sasl.oauthbearer.assertion.algorithm": "RS256 ES256",
        "sasl.oauthbearer.grant.type": "client_credentials urn:ietf:params:oauth:grant-type:jwt-bearer",
        "sasl.oauthbearer.metadata.authentication.type": "none azure_imds aws_iam",
        "sasl.oauthbearer.method": "default oidc",
        "security.protocol": "plaintext ssl sasl_plaintext sasl_ssl",
        "ssl.endpoint.identification.algorithm": "none https",
        "sasl.mechanism": "GSSAPI PLAIN SCRAM-SHA-256 SCRAM-SHA-512 OAUTHBEARER",
        "sasl.mechanisms": "GSSAPI PLAIN SCRAM-SHA-256 SCRAM-SHA-512 OAUTHBEARER",
    }.items()
}
"""Names, by the property's name. Upper and lower case are the same."""
SWITCHES = frozenset(
    """
    api.version.request check.crcs enable.metrics.push enable.random.seed
    enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification log.connection.close
    sasl.oauthbearer.assertion.claim.jti.include socket.keepalive.enable socket.nagle.disable
    topic.metadata.refresh.sparse
    """.split()  # noqa: SIM905 - a table
)
_TRUE_OR_FALSE = ("true", "false")
_WHOLE = re.compile(r"[-+]?[0-9]+")
_FRACTION = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?")


def expected(name: str, value: str) -> str | None:
    """The expected form if the property does not take this value; None if it does, or if that is not known here.

    Args:
        name: the property, in librdkafka's names.
        value: its value.

    Example:
        >>> expected("fetch.min.bytes", "many"), expected("check.crcs", "maybe"), expected("linger.ms", "2.5")
        ('a whole number from 1 to 100,000,000', '`true` or `false`', None)
    """
    if name in CHOICES or name in SWITCHES:
        choices = CHOICES.get(name, _TRUE_OR_FALSE)
        allowed = {each.lower() for each in choices} | ({"t", "f", "0", "1"} if name in SWITCHES else set())
        return None if value.lower() in allowed else _one_of(choices)
    if name not in RANGES:
        return None
    (least, largest), is_fraction = RANGES[name], name in FRACTIONS
    if (_FRACTION if is_fraction else _WHOLE).fullmatch(value) and least <= float(value) <= largest:
        return None
    return f"a {'number' if is_fraction else 'whole number'} from {least:,} to {largest:,}"


def _one_of(choices: tuple[str, ...]) -> str:
    return " or ".join(filter(None, [", ".join(f"`{each}`" for each in choices[:-1]), f"`{choices[-1]}`"]))
