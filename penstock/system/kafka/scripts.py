"""Commands of Kafka's own scripts, for messages that say what to do on the brokers."""

from __future__ import annotations


def alter_command(servers: str, topic: str, setting: str) -> str:
    """The command that changes a setting of a topic, `key=value`. `servers`: the addresses of some brokers."""
    return (
        f"kafka-configs.sh --bootstrap-server {servers} --alter --entity-type topics --entity-name {topic} "
        f"--add-config {setting}"
    )
