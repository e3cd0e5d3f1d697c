"""The rights that a client needs, and the commands of Kafka's own scripts that grant them or change a topic. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from penstock.base.wording import listed
from penstock.system.kafka.job_topic import PREFIX
from penstock.system.kafka.options import KafkaOptions

_LOGIN = re.compile(r"[\w.@/-]+")


@dataclass(frozen=True, slots=True)
class Right:
    """One operation on topics, transactional ids or the cluster, in Kafka's names."""

    operation: str
    names: tuple[str, ...] = ()
    kind: Literal["topic", "transactional-id", "cluster"] = "topic"

    def missing(self, options: KafkaOptions) -> str:
        """The sentence for an error: the user, the missing right, and the way to grant it.

        Example:
            >>> options = KafkaOptions("kafka", {"bootstrap.servers": "b:9092", "sasl.username": "shop"}, {})
            >>> Right("Read", ("flights",)).missing(options)
            'The user `User:shop` has no right to Read on topic `flights`. Grant it: `kafka-acls.sh --bootstrap-server \
b:9092 --add --allow-principal User:shop --operation Read --topic flights`'
        """
        login = options.consumer.get("sasl.username", "")
        user = f"User:{login}" if _LOGIN.fullmatch(login) else "User:NAME"
        who = f"The user `{user}`" if login else "The client's user"
        what = self.kind if self.kind == "cluster" else f"{self.kind} {listed([f'`{name}`' for name in self.names])}"
        return (
            f"{who} has no right to {self.operation} on {what}. Grant it: `kafka-acls.sh --bootstrap-server "
            f"{options.servers} --add --allow-principal {user} --operation {self.operation} {self._resource}`"
        )

    @property
    def _resource(self) -> str:
        if self.kind == "cluster":
            return "--cluster"
        names = sorted({PREFIX if name.startswith(PREFIX) else name for name in self.names})
        prefixed = "--resource-pattern-type prefixed " if names == [PREFIX] else ""
        return prefixed + " ".join(f"--{self.kind} {name}" for name in names)


def topic(operation: str, *names: str) -> Right:
    return Right(operation, names)


TRANSACTIONS = Right("Write", (PREFIX,), "transactional-id")
"""All transactional ids of Penstock begin with the prefix."""
IDEMPOTENT = Right("IdempotentWrite", kind="cluster")
"""Required of producers by brokers before 2.8."""


def alter_command(servers: str, topic: str, setting: str) -> str:
    """The command that changes a setting of a topic, `key=value`. `servers`: the addresses of some brokers."""
    return (
        f"kafka-configs.sh --bootstrap-server {servers} --alter --entity-type topics --entity-name {topic} "
        f"--add-config {setting}"
    )
