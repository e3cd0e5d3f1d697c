"""The settings of a broker for tests: one node, loopback, small, and quick at what a server does every few minutes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from penstock.errors import ConfigError

Security = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
"""Security protocols of a listener, in Kafka's names."""
Listener = Security | Literal["CONTROLLER"]
"""A listener of the server; the controller's is for the server itself."""
SECURITY: tuple[Security, ...] = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
USER = "penstock"


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files. The files of the server and the client begin with the private key, which has no password."""

    authority: Path
    server: Path
    client: Path


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """The place of a broker in its cluster.

    Args:
        number: its id.
        voters: the controllers of the cluster, as the server wants them; empty for a broker that is alone.
    """

    number: int = 1
    voters: str = ""


ALONE = BrokerNode()
_CONTROLLER = "CONTROLLER"
_LARGEST_MESSAGE = 64 << 20
_SMALL = {
    "process.roles": "broker,controller",
    "node.id": "1",
    # Topics of the server itself: one replica, one partition.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",  # a test that reads a topic that is missing should notice
    "message.max.bytes": str(_LARGEST_MESSAGE),
    "replica.fetch.max.bytes": str(_LARGEST_MESSAGE),
    # Memory and threads.
    "num.network.threads": "2",
    "num.io.threads": "2",
    "background.threads": "2",
    "num.recovery.threads.per.data.dir": "2",
    "log.cleaner.dedupe.buffer.size": str(4 << 20),
    # A killed broker is registered again when the session of the one before it has ended.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "300",
    # Housekeeping that tests wait for.
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
    "log.cleaner.backoff.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


def server_settings(
    folder: str,
    ports: Mapping[Listener, int],
    certificates: Certificates | None,
    password: str,
    given: Mapping[str, object],
    node: BrokerNode = ALONE,
) -> dict[str, str]:
    """The settings of a server, by their names in `server.properties`.

    Args:
        folder: where the server keeps its data.
        ports: the port of the controller and of each listener; `PLAINTEXT` is always one, which the server itself uses.
        certificates: for listeners with TLS.
        password: of the user `USER`.
        given: what the user sets; it counts most.
        node: its place in the cluster.

    Raises:
        ConfigError: a setting is given that the broker decides.
    """
    decided = _SMALL | _listeners(ports) | {"log.dirs": folder, "node.id": str(node.number)}
    if node.voters:
        decided["controller.quorum.voters"] = node.voters
    if certificates is not None:
        decided |= _tls(certificates)
    for name in ports:
        if name.startswith("SASL"):
            decided |= _sasl(f"listener.name.{name.lower()}", password)
    reserved = {"log.dirs", "log.dir", "node.id", "process.roles", *_listeners(ports)} & set(given)
    if reserved:
        raise ConfigError(f"KafkaBroker decides {', '.join(f'`{name}`' for name in sorted(reserved))}: leave it out")
    return decided | {name: _text(value) for name, value in given.items()}


def properties(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}={_escaped(value)}\n" for name, value in settings.items())


def _listeners(ports: Mapping[Listener, int]) -> dict[str, str]:
    listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
    return {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": ",".join(
            f"{name}:{'PLAINTEXT' if name == _CONTROLLER else name}" for name in ports
        ),
        "controller.listener.names": _CONTROLLER,
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.quorum.voters": f"1@127.0.0.1:{ports['CONTROLLER']}",
    }


def _tls(certificates: Certificates) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.server),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
        "ssl.client.auth": "none",
    }


def _sasl(listener: str, password: str) -> dict[str, str]:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        f"{listener}.sasl.enabled.mechanisms": "PLAIN",
        f"{listener}.plain.sasl.jaas.config": f'{module} required user_{USER}="{password}";',
    }


def client_options(
    servers: str, security: Security, certificates: Certificates | None, password: str
) -> dict[str, str]:
    """The options of a client for a listener."""
    options = {"bootstrap.servers": servers}
    if security != "PLAINTEXT":
        options["security.protocol"] = security
    if security.endswith("SSL") and certificates is not None:
        options |= {
            "ssl.ca.location": str(certificates.authority),
            "ssl.certificate.location": str(certificates.client),
            "ssl.key.location": str(certificates.client),
        }
    if security.startswith("SASL"):
        options |= {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": password}
    return options


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def checked(security: Collection[str]) -> tuple[Security, ...]:
    """The requested listeners, in their order. Raises ConfigError if Kafka has no such kind."""
    known = tuple(name for given in security for name in SECURITY if name == given)
    if not known or len(known) < len(security):
        unknown = ", ".join(f"`{name}`" for name in security if name not in SECURITY)
        raise ConfigError(f"`security` is {unknown or 'empty'}; it can be some of: {', '.join(SECURITY)}")
    return known
