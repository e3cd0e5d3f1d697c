"""The names of properties in Kafka's Java client and in librdkafka. Pure: no file is read, no client made."""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.errors import ConfigError

RENAMED: Mapping[str, str] = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms",
    "max.request.size": "message.max.bytes",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "sasl.oauthbearer.scope.claim.name": "sasl.oauthbearer.scope",
}
"""Properties with another name and the same values."""
HELD = frozenset(
    {
        "buffer.memory",
        "sasl.jaas.config",
        "ssl.keystore.type",
        "ssl.truststore.location",
        "ssl.truststore.type",
    }
)
"""Properties of the Java client that are translated into others."""

_DECIDED = "Penstock decides it: "
_NO_GROUP = _DECIDED + "a job assigns partitions itself and joins no consumer group"
_BYTES = "Penstock gives the client bytes; declare serdes in the application"
_JAVA = "librdkafka cannot load Java classes; remove it"
_DURABLE = _DECIDED + "every write waits until all in-sync replicas have it, once"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        [
            *("group.id", "group.instance.id", "group.protocol", "group.protocol.type", "group.remote.assignor"),
            *("partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms"),
            *("coordinator.query.interval.ms", "share.acknowledgement.mode", "exclude.internal.topics"),
        ],
        _NO_GROUP,
    ),
    **dict.fromkeys(
        [
            *("enable.auto.commit", "auto.commit.enable", "auto.commit.interval.ms", "enable.auto.offset.store"),
            *("offset.store.method", "offset.store.path", "offset.store.sync.interval.ms"),
        ],
        _DECIDED + "positions are in the job's checkpoints, and no group offset is committed",
    ),
    "auto.offset.reset": _DECIDED
    + "where a stream without a checkpoint begins is `streams.<system>.<stream>.samza.offset.default`, and messages "
    "that were deleted before they were read are an error",
    "isolation.level": _DECIDED + "only committed messages are read",
    "enable.partition.eof": _DECIDED + "the end of a partition tells that a range was read",
    "max.poll.records": _DECIDED + "readers take what is there",
    "consume.callback.max.messages": _DECIDED + "readers take what is there",
    "allow.auto.create.topics": _DECIDED + "a stream that does not exist is an error",
    **dict.fromkeys(["acks", "request.required.acks", "enable.idempotence", "enable.gapless.guarantee"], _DURABLE),
    "transactional.id": _DECIDED + "every process has its own, which fencing needs",
    **dict.fromkeys(
        ["delivery.report.only.error", "produce.offset.report"], _DECIDED + "every message's delivery is reported"
    ),
    **dict.fromkeys(
        ["partitioner", "partitioner.class", "sticky.partitioning.linger.ms"],
        _DECIDED + "it chooses the partition of every message (docs/systems.md)",
    ),
    "queuing.strategy": _DECIDED + "messages are sent in order",
    "log.thread.name": _DECIDED + "logs of the client are in the log `penstock.system.kafka`",
    "max.block.ms": "use `consumer.default.api.timeout.ms`, which limits every call",
    **dict.fromkeys(["key.serializer", "value.serializer", "key.deserializer", "value.deserializer"], _BYTES),
    **dict.fromkeys(
        [
            *("interceptor.classes", "metric.reporters", "security.providers", "ssl.engine.factory.class"),
            *("sasl.login.class", "sasl.login.callback.handler.class", "sasl.client.callback.handler.class"),
            *("ssl.provider", "ssl.protocol", "ssl.trustmanager.algorithm", "ssl.keymanager.algorithm"),
        ],
        _JAVA,
    ),
    **dict.fromkeys(
        ["metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms", "auto.include.jmx.reporter"],
        "librdkafka has no such metrics; remove it",
    ),
    "ssl.enabled.protocols": "librdkafka takes the newest TLS version that both sides have; remove it",
    "ssl.secure.random.implementation": "librdkafka has one source of random numbers; remove it",
    "zookeeper.connect": "brokers are reached through `bootstrap.servers` alone; remove it",
    "metadata.broker.list": "write `bootstrap.servers`",
    "plugin.library.paths": "Penstock loads no plugins into the client",
}
"""Properties that a configuration may not hold, and why."""

SECRETS = re.compile(r"password|secret|passphrase|jaas|\.pem|keystore\.key|oauthbearer\.config|certificate\.chain")

_MODULE = re.compile(r"([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*?);?", re.DOTALL)
_ARGUMENT = re.compile(r"""(?<![\w.])([\w.]+)\s*=\s*("((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|[^\s;]+)""")
_LOGIN_MODULES = ("PlainLoginModule", "ScramLoginModule")


def translate(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """The properties in librdkafka's names. Names that neither client has stay as they are.

    Args:
        name: their owner, such as `systems.kafka.consumer`, for messages.
        properties: in the Java client's names, or librdkafka's.

    Raises:
        ConfigError: a property is one that Penstock or librdkafka cannot take, and why.
    """
    left: dict[str, str] = dict(properties)
    for key in list(left):
        if key in REFUSED:
            raise ConfigError(f"`{name}.{key}` cannot be set: {REFUSED[key]}")
    found = _stores(name, left)
    if "sasl.jaas.config" in left:
        found |= _login(name, left.pop("sasl.jaas.config"))
    if left.get("ssl.endpoint.identification.algorithm") == "":
        left["ssl.endpoint.identification.algorithm"] = "none"
    if "buffer.memory" in left:
        key = f"{name}.buffer.memory"
        found["queue.buffering.max.kbytes"] = str(max(1, whole_number(key, left.pop("buffer.memory")) >> 10))
    for key, value in left.items():
        if (translated := RENAMED.get(key, key)) in found:
            raise ConfigError(f"`{name}.{key}` is also set by another of its names, or by what holds it: give one only")
        found[translated] = value
    return found


def whole_number(key: str, text: str) -> int:
    """A whole number, 0 or more. Raises ConfigError for another text."""
    if re.fullmatch(r"\s*[0-9]{1,19}\s*", text) is None:
        raise ConfigError(f"`{key}` = `{text}`: expected a whole number")
    return int(text)


def _login(name: str, text: str) -> dict[str, str]:
    """The user in a text for Java's login module. Errors do not show it."""
    matched = _MODULE.fullmatch(text.strip())
    module = matched.group(1).rpartition(".")[2] if matched else ""
    arguments = {}
    if matched:
        for key, whole, double, single in _ARGUMENT.findall(matched.group(2)):
            quoted = double or single
            arguments[key] = re.sub(r"\\(.)", r"\1", quoted) if whole[0] in "\"'" else whole
    if module not in _LOGIN_MODULES or not {"username", "password"} <= arguments.keys():
        raise ConfigError(
            f"`{name}.sasl.jaas.config` cannot be translated: only {' and '.join(_LOGIN_MODULES)} with username and "
            "password can. Set librdkafka's `sasl.*` properties instead (its value is not shown here)"
        )
    return {"sasl.username": arguments["username"], "sasl.password": arguments["password"]}


def _stores(name: str, left: dict[str, str]) -> dict[str, str]:
    """The files of certificates and keys. Translated properties are removed from `left`."""
    found = {}
    if "ssl.truststore.location" in left:
        path = left.pop("ssl.truststore.location")
        kind = left.pop("ssl.truststore.type", None)
        if _kind(path, kind) != "PEM":
            raise ConfigError(
                f"`{name}.ssl.truststore.location` = `{path}`: librdkafka reads certificates of authorities as PEM "
                f"only. Export them with `keytool -list -rfc -keystore {path} > ca.pem`, and set "
                f"`{name}.ssl.ca.location` to that file"
            )
        found["ssl.ca.location"] = path
    if "ssl.truststore.password" in left:
        raise ConfigError(f"`{name}.ssl.truststore.password` cannot be set: a PEM file of certificates has no password")
    if "ssl.keystore.location" in left:
        path = left["ssl.keystore.location"]
        kind = _kind(path, left.pop("ssl.keystore.type", None))
        if kind == "PEM":
            del left["ssl.keystore.location"]
            found |= {"ssl.certificate.location": path, "ssl.key.location": path}
        elif kind != "PKCS12":
            raise ConfigError(
                f"`{name}.ssl.keystore.location` = `{path}`: librdkafka reads keys as PKCS#12 or PEM. Convert it with "
                f"`keytool -importkeystore -srckeystore {path} -destkeystore client.p12 -deststoretype PKCS12`"
            )
    for store in ("truststore", "keystore"):
        if f"ssl.{store}.type" in left and left.pop(f"ssl.{store}.type").upper() != "PEM":
            raise ConfigError(f"`{name}.ssl.{store}.type`: there is no `{name}.ssl.{store}.location` that it is for")
    return found


def _kind(path: str, kind: str | None) -> str:
    if kind is not None:
        return kind.upper()
    ending = path.lower().rpartition(".")[2]
    return {"pem": "PEM", "crt": "PEM", "cer": "PEM", "p12": "PKCS12", "pfx": "PKCS12"}.get(ending, "JKS")
