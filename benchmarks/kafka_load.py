"""What the benchmark of Kafka reads and writes: the events in a topic, what a side wrote, and the other engines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.workload import Workload, key_name
from penstock.system.partitioner import partition_of

EVERY = 10
"""A key's count is sent on whenever it is a multiple of this, by all sides."""
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Engine:
    """Another engine: what is installed, and the script that runs its side."""

    requirement: str
    script: str
    connector: tuple[str, str, str] | None = None
    """The group, name and version of a jar that it needs, with all that this one depends on."""
    threads: bool = False
    """Whether one process uses all cores."""

    @property
    def folder(self) -> Path:
        """Its environment, which is kept for the next run."""
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return (
            caches
            / "penstock"
            / "benchmarks"
            / "".join(c if c.isalnum() or c in ".-" else "-" for c in self.requirement)
        )

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    def jars(self) -> list[str]:
        """The jars that it needs."""
        return sorted(str(path) for path in (self.folder / "jars").glob("*.jar"))

    @property
    def path(self) -> Path:
        """The script."""
        return Path(__file__).parent / "kafka_peers" / self.script


ENGINES = {
    "spark": Engine(
        "pyspark==4.2.0", "spark_count.py", ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"), threads=True
    ),
    "quix": Engine("quixstreams==3.28.1", "quix.py"),
    "bytewax": Engine("bytewax[kafka]==0.21.1", "bytewax_count.py"),
    "faust": Engine("faust-streaming[rocksdict]==0.15.3", "faust_count.py"),
}


def install(engine: Engine) -> str | None:
    """Install an engine, unless it is there. Returns why it is left out, if it cannot be installed."""
    if engine.python.exists():
        return None
    making = engine.folder.with_suffix(f".{os.getpid()}")
    making.parent.mkdir(parents=True, exist_ok=True)
    commands = [
        [sys.executable, "-m", "venv", str(making)],
        [
            str(making / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            engine.requirement,
        ],
    ]
    try:
        if engine.connector is not None:
            commands.append(_fetch_jars(making, *engine.connector))
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            if done.returncode != 0:
                return (done.stderr.strip().splitlines() or ["it could not be installed"])[-1]
        making.rename(engine.folder)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return None


def _fetch_jars(folder: Path, group: str, name: str, version: str) -> list[str]:
    """The command that fetches a jar and what it depends on into `jars`."""
    maven = shutil.which("mvn")
    if maven is None:
        raise OSError("its connector needs `mvn`")
    folder.mkdir(exist_ok=True)
    pom = folder / "pom.xml"
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>penstock</groupId><artifactId>connector</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies><dependency><groupId>{group}</groupId>"
        f"<artifactId>{name}</artifactId><version>{version}</version></dependency></dependencies></project>",
        encoding="utf-8",
    )
    options = ["-DincludeScope=runtime", f"-DoutputDirectory={folder / 'jars'}"]
    return [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", *options]


def create(brokers: str, topics: Sequence[str], partitions: int) -> None:
    """Create topics, which must not be there yet."""
    admin = AdminClient({"bootstrap.servers": brokers})
    for made in admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics]).values():
        made.result(_TIMEOUT_S)


def publish(brokers: str, topic: str, partitions: int, workload: Workload) -> None:
    """Write the events, by key as Java's client would."""
    producer = Producer(
        {
            "bootstrap.servers": brokers,
            "linger.ms": 50,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    places = {key_name(n): partition_of(key_name(n).encode(), partitions) for n in range(workload.keys)}
    for keys, amounts in workload.records():
        for key, amount in zip(keys, amounts, strict=True):
            value = orjson.dumps({"key": key, "amount": amount})
            while True:
                try:
                    producer.produce(topic, value, key, places[key])
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.poll(0)
    if producer.flush(_TIMEOUT_S):
        raise RuntimeError("the broker did not take all events")


def written(brokers: str, topic: str) -> int:
    """The sum of the ends of all partitions, as a reader of committed messages sees them."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "watch", "isolation.level": "read_committed"})
    try:
        partitions = consumer.list_topics(topic, _TIMEOUT_S).topics[topic].partitions
        return sum(consumer.get_watermark_offsets(TopicPartition(topic, p), _TIMEOUT_S)[1] for p in partitions)
    finally:
        consumer.close()


def read_committed(brokers: str, topic: str, *, idle_s: float = 2.0) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Every committed message of a topic, until none comes for some time."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "read",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    try:
        partitions = consumer.list_topics(topic, _TIMEOUT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
        last = time.monotonic()
        while time.monotonic() - last < idle_s:
            for message in consumer.consume(10_000, 0.2):
                if message.error() is None:
                    last = time.monotonic()
                    yield message.key(), message.value()
    finally:
        consumer.close()


def check_counts(brokers: str, topic: str, workload: Workload, *, every_one: bool) -> dict[str, object]:
    """Whether each key's counts are multiples of EVERY that rise, and none is too large.

    Args:
        every_one: whether none of them may be missing, from the first on.
    """
    last: dict[str, int] = {}
    wrong: list[str] = []
    for key, value in read_committed(brokers, topic):
        name, count = (key or b"").decode(), orjson.loads(value or b"{}").get("count")
        before = last.get(name, 0)
        if count % EVERY or (count != before + EVERY if every_one else count <= before):
            wrong.append(f"{name}: {count} after {before}")
        last[name] = count
    totals = workload.totals()
    wrong += [f"{name}: {count}" for name, count in last.items() if count > totals.get(name, (0, 0.0))[0]]
    return {"equal": bool(last) and not wrong, "keys": len(last), "wrong": len(wrong), "examples": wrong[:3]}
