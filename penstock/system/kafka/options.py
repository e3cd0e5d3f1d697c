"""The options of a system `kafka`, checked. Nothing is opened here.

The names and the valid values of librdkafka's properties are here too: names by client, without those that hold a
function or an object of a program, and the names that a configuration may not hold.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from penstock.base.secrets import RootKeys
from penstock.config.settings import ROOT_OPTIONS
from penstock.errors import ConfigError
from penstock.system.kafka.job_topic import RecordSigner

SHARED = frozenset(
    """
    allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
    bootstrap.servers broker.address.family broker.address.ttl broker.version.fallback client.dns.lookup client.id
    client.rack connections.max.idle.ms debug enable.metrics.push enable.random.seed
    enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification https.ca.location https.ca.pem
    log.connection.close log.thread.name log_level max.in.flight max.in.flight.requests.per.connection
    message.copy.max.bytes message.max.bytes metadata.broker.list metadata.max.age.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy plugin.library.paths
    receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms
    retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.principal sasl.kerberos.service.name sasl.mechanism
    sasl.mechanisms sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
    sasl.oauthbearer.assertion.jwt.template.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.private.key.pem
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.config sasl.oauthbearer.extensions
    sasl.oauthbearer.grant.type sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method
    sasl.oauthbearer.scope sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url sasl.password
    sasl.username security.protocol socket.blocking.max.ms socket.connection.setup.timeout.ms
    socket.keepalive.enable socket.max.fails socket.nagle.disable socket.receive.buffer.bytes
    socket.send.buffer.bytes socket.timeout.ms ssl.ca.certificate.stores ssl.ca.location ssl.ca.pem
    ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location ssl.curves.list
    ssl.endpoint.identification.algorithm ssl.engine.id ssl.engine.location ssl.key.location ssl.key.password
    ssl.key.pem ssl.keystore.location ssl.keystore.password ssl.providers ssl.sigalgs.list statistics.interval.ms
    topic.blacklist topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
    """.split()  # noqa: SIM905 - a table
)

CONSUMER = frozenset(
    """
    auto.commit.enable auto.commit.interval.ms auto.offset.reset check.crcs consume.callback.max.messages
    coordinator.query.interval.ms enable.auto.commit enable.auto.offset.store enable.partition.eof
    fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms
    fetch.wait.max.ms group.id group.instance.id group.protocol group.protocol.type group.remote.assignor
    heartbeat.interval.ms isolation.level max.partition.fetch.bytes max.poll.interval.ms max.poll.records
    offset.store.method offset.store.path offset.store.sync.interval.ms partition.assignment.strategy
    queued.max.messages.kbytes queued.min.messages session.timeout.ms share.acknowledgement.mode
    """.split()  # noqa: SIM905 - a table
)

PRODUCER = frozenset(
    """
    acks batch.num.messages batch.size compression.codec compression.level compression.type
    delivery.report.only.error delivery.timeout.ms enable.gapless.guarantee enable.idempotence linger.ms
    message.send.max.retries message.timeout.ms partitioner produce.offset.report
    queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages
    queue.buffering.max.ms queuing.strategy request.required.acks request.timeout.ms retries
    sticky.partitioning.linger.ms transaction.timeout.ms transactional.id
    """.split()  # noqa: SIM905 - a table
)

INSTEAD: Mapping[str, str] = {
    "metadata.broker.list": "`bootstrap.servers`",
    "zookeeper.connect": "`bootstrap.servers`",
    "fetch.max.wait.ms": "`fetch.wait.max.ms`",
    "send.buffer.bytes": "`socket.send.buffer.bytes`",
    "receive.buffer.bytes": "`socket.receive.buffer.bytes`",
    "socket.connection.setup.timeout.max.ms": "`socket.connection.setup.timeout.ms`",
    "max.request.size": "`message.max.bytes`",
    "buffer.memory": "`queue.buffering.max.kbytes`, in KiB",
    "max.block.ms": "`default.api.timeout.ms` of `consumer`, which limits every call",
    "sasl.jaas.config": "`sasl.username` and `sasl.password`",
    "sasl.oauthbearer.scope.claim.name": "`sasl.oauthbearer.scope`",
    "ssl.truststore.location": "`ssl.ca.location`, a PEM file: `keytool -list -rfc -keystore FILE > ca.pem` writes one",
    "ssl.truststore.certificates": "`ssl.ca.pem`",
    "ssl.truststore.password": "`ssl.ca.location`, a PEM file, which has no password",
    "ssl.truststore.type": "`ssl.ca.location`, a PEM file",
    "ssl.keystore.certificate.chain": "`ssl.certificate.pem`",
    "ssl.keystore.key": "`ssl.key.pem`",
    "ssl.keystore.type": "`ssl.keystore.location` for PKCS#12, or `ssl.certificate.location` and `ssl.key.location`",
}
"""Names of Kafka's Java client, and older ones of librdkafka -> what to set instead."""

_DECIDED = "Penstock decides it: "
REFUSED: Mapping[str, str] = {
    name: reason
    for names, reason in {
        "group.id group.instance.id group.protocol group.protocol.type group.remote.assignor "
        "partition.assignment.strategy session.timeout.ms heartbeat.interval.ms max.poll.interval.ms "
        "coordinator.query.interval.ms share.acknowledgement.mode": _DECIDED
        + "a job assigns partitions itself and joins no consumer group",
        "enable.auto.commit auto.commit.enable auto.commit.interval.ms enable.auto.offset.store offset.store.method "
        "offset.store.path offset.store.sync.interval.ms": _DECIDED
        + "positions are in the job's checkpoints, and no group offset is committed",
        "auto.offset.reset": _DECIDED
        + "where a stream without a checkpoint begins is `streams.<system>.<stream>.samza.offset.default`, and "
        "messages that were deleted before they were read are an error",
        "isolation.level": _DECIDED + "only committed messages are read",
        "enable.partition.eof": _DECIDED + "the end of a partition tells that a range was read",
        "max.poll.records consume.callback.max.messages": _DECIDED + "readers take what is there",
        "allow.auto.create.topics": _DECIDED + "a stream that does not exist is an error",
        "acks request.required.acks enable.idempotence enable.gapless.guarantee": _DECIDED
        + "every write waits until all in-sync replicas have it, once",
        "transactional.id": _DECIDED + "every process has its own, which fencing needs",
        "delivery.report.only.error produce.offset.report": _DECIDED + "every message's delivery is reported",
        "partitioner sticky.partitioning.linger.ms": _DECIDED
        + "it chooses the partition of every message (docs/systems.md)",
        "queuing.strategy": _DECIDED + "messages are sent in order",
        "log.thread.name": _DECIDED + "logs of the client are in the log `penstock.system.kafka`",
        "plugin.library.paths": "Penstock loads no plugins into the client",
        "key.serializer value.serializer key.deserializer value.deserializer": "declare serdes in the application",
    }.items()
    for name in names.split()
}
"""Properties that a configuration may not hold, and why."""


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


TRANSACTION_MS = 60_000
"""The client's own default of `transaction.timeout.ms`."""
DEFAULT_TIMEOUT_MS = 30_000
"""A call waits so long for the brokers before it is a RetryableError."""
_TIMEOUT = "default.api.timeout.ms"
_PARTS = ("consumer.", "producer.", "default.stream.")
_SERVERS = "bootstrap.servers"
_SECURITY = ("security.protocol", "ssl.", "sasl.", "enable.ssl.", "enable.sasl.", "https.")


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The settings in `systems.<name>.*`. They may hold passwords, so `repr` omits the values."""

    system: str
    consumer: Mapping[str, str] = field(repr=False)
    """For consumers, and in part for admins."""
    producer: Mapping[str, str] = field(repr=False)
    topics: Mapping[str, str] = field(default_factory=dict)
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    keys: RootKeys = field(default_factory=RootKeys)
    """The keys of `job.root`, which sign Penstock's own records."""
    takes_unsigned: bool = False
    """Accept records of the job without a signature, although there is a key: while they are being signed."""

    @property
    def signer(self) -> RecordSigner:
        return RecordSigner(self.keys, takes_unsigned=self.takes_unsigned)

    @property
    def servers(self) -> str:
        return self.consumer[_SERVERS]

    @property
    def timeout_s(self) -> float:
        return self.timeout_ms / 1000

    @property
    def transaction_s(self) -> float:
        """The brokers end a transaction after so long, if its producer has died."""
        return int(self.producer.get("transaction.timeout.ms", TRANSACTION_MS)) / 1000

    @property
    def admin(self) -> Mapping[str, str]:
        """The part of `consumer` that is not for consumers alone."""
        return {key: value for key, value in self.consumer.items() if key not in CONSUMER}


def weaknesses(options: KafkaOptions) -> list[str]:
    """The weaknesses of the options, in words: others could read, or pretend to be a broker."""
    given = options.consumer
    protocol = given.get("security.protocol", "plaintext").lower()
    found = []
    if protocol == "sasl_plaintext":
        found.append(
            "`security.protocol` is SASL_PLAINTEXT: the network can read messages, and passwords in most cases"
        )
    if given.get("enable.ssl.certificate.verification", "true").lower() == "false":
        found.append("`enable.ssl.certificate.verification` is false: anybody can pretend to be a broker")
    if given.get("ssl.endpoint.identification.algorithm", "https").lower() in ("none", ""):
        found.append(
            "`ssl.endpoint.identification.algorithm` is none: any certificate will do to pretend to be a broker"
        )
    return found


def parse_options(system: str, options: Mapping[str, str]) -> KafkaOptions:
    """Parse the options of a system.

    Args:
        options: by the rest of the key, such as `consumer.bootstrap.servers`, and those of the job's root.

    Raises:
        ConfigError: no brokers are given, or an option is unknown (the message names the nearest) or cannot be taken
            (the message says why). No value of an option is in the message if it could be a secret.
    """
    keys = RootKeys(options.get("root.key"), options.get("root.key.previous"))
    parts: dict[str, dict[str, str]] = {part: {} for part in _PARTS}
    for option, value in options.items():
        if option in ROOT_OPTIONS:
            continue
        part = next((each for each in _PARTS if option.startswith(each)), None)
        if part is None:
            raise ConfigError(_unknown(f"systems.{system}.", option, _all_names()))
        parts[part][option.removeprefix(part)] = value
    consumer, producer, topics = parts.values()
    timeout = _timeout_ms(system, consumer)
    _check(f"systems.{system}.consumer", consumer, SHARED | CONSUMER, PRODUCER)
    _check(f"systems.{system}.producer", producer, SHARED | PRODUCER, CONSUMER)
    _share_connection(consumer, producer)
    found = KafkaOptions(system, consumer, producer, topics, timeout, keys)
    if not found.consumer.get(_SERVERS, "").strip():
        raise ConfigError(
            f"`systems.{system}.consumer.bootstrap.servers` is missing: the addresses of some brokers, such as "
            "`broker-1:9092,broker-2:9092`"
        )
    return found


def _timeout_ms(system: str, consumer: dict[str, str]) -> int:
    given = consumer.pop(_TIMEOUT, None)
    if given is None:
        return DEFAULT_TIMEOUT_MS
    if re.fullmatch(r"\s*0*[1-9][0-9]{0,18}\s*", given) is None:
        raise ConfigError(
            f"`systems.{system}.consumer.{_TIMEOUT}` = `{given}`: expected a whole number of milliseconds, at least 1"
        )
    return int(given)


def _share_connection(consumer: dict[str, str], producer: dict[str, str]) -> None:
    """If only one side names brokers, both use them; if only one has security settings for these brokers, both use
    them."""
    sides = (consumer, producer), (producer, consumer)
    for given, other in sides:
        if _SERVERS in given:
            other.setdefault(_SERVERS, given[_SERVERS])
    if _brokers(consumer) == _brokers(producer):
        for given, other in sides:
            if not any(key.startswith(_SECURITY) for key in other):
                other.update({key: value for key, value in given.items() if key.startswith(_SECURITY)})


def _brokers(side: Mapping[str, str]) -> set[str]:
    return {each.strip() for each in side.get(_SERVERS, "").split(",")}


def _check(name: str, properties: Mapping[str, str], known: frozenset[str], others: Collection[str]) -> None:
    for key, value in properties.items():
        if key in REFUSED:
            raise ConfigError(f"`{name}.{key}` cannot be set: {REFUSED[key]}")
        if key in INSTEAD:
            raise ConfigError(f"`{name}.{key}` cannot be set: Penstock's client is librdkafka. Set {INSTEAD[key]}")
        if key in others:
            side = "consumers" if name.endswith("producer") else "producers"
            raise ConfigError(f"`{name}.{key}` cannot be set: only {side} have it")
        if key not in known:
            raise ConfigError(_unknown(f"{name}.", key, _taken(known)))
        if (wanted := expected(key, value.strip())) is not None:
            raise ConfigError(f"`{name}.{key}` = `{value}`: expected {wanted}")


def _unknown(prefix: str, key: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.5)
    hint = f"did you mean `{prefix}{near[0]}`?" if near else "docs/kafka.md says which there are"
    return f"unknown option `{prefix}{key}`: {hint}"


def _all_names() -> list[str]:
    sides = {"consumer.": SHARED | CONSUMER, "producer.": SHARED | PRODUCER}
    topics = ["default.stream.replication.factor", "default.stream.min.insync.replicas"]
    return [part + key for part, keys in sides.items() for key in _taken(keys)] + [f"consumer.{_TIMEOUT}", *topics]


def _taken(known: frozenset[str]) -> frozenset[str]:
    return known - REFUSED.keys() - INSTEAD.keys()
