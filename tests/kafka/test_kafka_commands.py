"""The commands of `penstock stream` on Kafka, over TLS with a password."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.testing.kafka_broker import KafkaBroker
from tests.support.streams.kafka import new_name
from tests.support.tools.cli import call, call_json, own_home

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def test_the_life_of_a_topic(kafka_broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_home(tmp_path, monkeypatch)
    topic = new_name()
    stream = f"kafka.{topic}"
    config = kafka_broker.system_config("kafka", "SASL_SSL")
    Path("kafka.properties").write_text("".join(f"{key}={value}\n" for key, value in config.items()))
    with_kafka = ("--config", "kafka.properties")
    Path("in.jsonl").write_text("".join(f'{{"id": "k{n % 3}", "n": {n}, "at": {1000 + n}}}\n' for n in range(20)))

    created = ("stream", "create", stream, "--partitions", "3", "--retention", "none", *with_kafka)
    assert call(*created)[0] == f"created `{stream}` with 3 partitions\n"
    assert call(*created)[0] == f"`{stream}` already exists with 3 partitions\n"
    assert stream in call("stream", "list", "kafka", *with_kafka)[0]
    publish = ("stream", "publish", stream, "--file", "in.jsonl", "--key", "id", "--timestamp", "at", *with_kafka)
    assert "20 messages" in call(*publish)[0]
    facts = call_json("stream", "describe", stream, *with_kafka)
    assert (facts["stream"], facts["partitionCount"]) == (stream, 3)
    tail = ("stream", "tail", stream, "--from-beginning", "--json", *with_kafka)
    found = [json.loads(line) for line in call(*tail)[0].splitlines()]
    assert sorted(json.loads(message["value"])["n"] for message in found) == list(range(20))
    assert {message["key"] for message in found} == {"k0", "k1", "k2"}

    retained = call_json("stream", "retain", stream, "--retention", "1d", "--yes", *with_kafka)
    assert retained["retentionMs"] == 86_400_000
    deleted = call("stream", "delete", stream, "--yes", *with_kafka)[0]
    assert deleted == f"deleted `{stream}`: 3 partitions\n"
    assert stream not in call("stream", "list", "kafka", *with_kafka)[0]
    assert "does not exist" in call("stream", "describe", stream, *with_kafka, status=1)[1]
