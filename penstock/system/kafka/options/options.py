"""The options of a system `kafka`, checked. Nothing is opened here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from penstock.base.signing import RootKeys
from penstock.config.settings import ROOT_OPTIONS
from penstock.errors import ConfigError
from penstock.system.kafka.options.known import CONSUMER, INSTEAD, PRODUCER, REFUSED, SHARED
from penstock.system.kafka.options.values import expected
from penstock.system.kafka.signatures import RecordSigner

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
