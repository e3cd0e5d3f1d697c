"""Applications whose query's checkpoint location is set back: with side inputs, standbys, and outputs to other systems,
compared with plain Python."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock as ps
import penstock.spark as pss
from penstock import admin
from penstock.admin.job.status import metrics_of
from penstock.api.ssp import SystemStreamPartition
from penstock.system.local import LocalSystem
from penstock.system.partitioner import partition_of
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.jobs.home import kill, wait_until
from tests.support.processes.inspection import containers_here
from tests.support.streams.kafka import new_name, new_topic
from tests.support.streams.outboxes import read_all
from tests.support.world.kafka_world import read_committed

pytestmark = pytest.mark.spark
TASKS = 2
USERS = [f"u{number}" for number in range(5)]
Row: TypeAlias = tuple[str, int, str, str]
"""A user, how many pages it has seen, its name, and the last of the pages."""


class Seen(ps.StreamTask):
    """Counts the pages of a user, whose name is in a store that a side input fills."""

    def init(self, context: Any) -> None:
        self.pages, self.names = context.store("pages"), context.store("names")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        user = envelope.key
        count = self.pages[user] = self.pages.get(user, 0) + 1
        collector.emit(key=user, value=(user, count, self.names[user], envelope.value.page))


def seen(outputs: Iterable[str]) -> ps.StreamApplication:
    """`Seen` on rows, to a DataFrame and to other outputs."""
    app = ps.StreamApplication("seen")
    app.store("pages", value=ps.Long())
    app.store("names", value=ps.String(), side_inputs=["local.names"])
    users = app.input("spark.rows", value=pss.Rows()).partition_by(lambda row: row.user)
    found = users.process(Seen, stores=["pages", "names"], value=ps.Json())
    found.send_to(app.output("spark.seen", value=pss.Rows("user STRING, n LONG, name STRING, page STRING")))
    for output in outputs:
        found.send_to(app.output(output, value=ps.Json()))
    return app


class World:
    """One query: a file of rows for each batch, the names of users, and what the handler got."""

    def __init__(self, spark: SparkSession, folder: Path, outputs: Sequence[str], config: Mapping[str, object]) -> None:
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        self.spark, self.folder, self.outputs = spark, folder, outputs
        self.config = {"job.lease.ms": 1500, "systems.local.path": str(folder / "streams"), **config}
        self.streams = LocalSystem("local", str(folder / "streams"))
        self.streams.admin().create_stream("names", TASKS)
        self.location, self.source = folder / "location", folder / "in"
        self.source.mkdir()
        self.files: list[list[tuple[str, str]]] = []
        self.got: dict[int, list[Row]] = {}
        """The rows of each batch, as a sink has them that is idempotent by batch id."""

    def publish(self, files: int, seed: int) -> None:
        """The rows of further batches."""
        chance = random.Random(seed)
        for _ in range(files):
            number = len(self.files)
            rows = [(chance.choice(USERS), f"{seed}-{number}-{n}") for n in range(20 + seed)]
            self.files.append(rows)
            part = self.folder / "part"
            pq.write_table(pa.table(dict(zip(("user", "page"), map(list, zip(*rows, strict=True)), strict=True))), part)
            os.utime(part, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads the oldest first
            part.replace(self.source / f"{seed}-{number}.parquet")

    def name(self, kind: str) -> None:
        """Names of this kind for all users, by the side input."""
        for user in USERS:
            here = SystemStreamPartition("local", "names", partition_of(user.encode(), TASKS))
            self.streams.writer(None).append(here, [(5, user.encode(), f"{kind} {user}".encode())])

    def set_back(self, saved: Path, files: int) -> None:
        """Let the checkpoint location be as it was, when there were so many files. The others are gone."""
        shutil.rmtree(self.location)
        shutil.copytree(saved, self.location)
        del self.files[files:]
        for file in self.source.iterdir():
            if int(file.stem.split("-")[1]) >= files:
                file.unlink()

    def start(self, handler: Callable[[int], object] = lambda batch: None, **more: Any) -> StreamingQuery:
        """Start the query."""

        def keeps(outputs: Any, batch: int) -> None:
            self.got[batch] = sorted(tuple(row) for row in outputs["seen"].collect())
            handler(batch)

        rows = self.spark.readStream.schema("user STRING, page STRING").option("maxFilesPerTrigger", 1)
        root, parquet = str(self.folder / "root"), rows.parquet(str(self.source))
        return (
            pss.run_application(seen(self.outputs), parquet, root=root, partitions=TASKS, config=self.config, **more)
            .for_each_batch(keeps)
            .option("checkpointLocation", str(self.location))
            .trigger(availableNow=True)
            .start()
        )

    def run(self, handler: Callable[[int], object] = lambda batch: None, **more: Any) -> None:
        """Start the query and await its end."""
        self.start(handler, **more).awaitTermination()

    def expected(self, kinds: Sequence[str]) -> list[list[Row]]:
        """The plain computation: the rows of each batch, by the kind of names that it saw."""
        counts = Counter[str]()
        found = []
        for rows, kind in zip(self.files, kinds, strict=True):
            batch = []
            for user, page in rows:
                counts[user] += 1
                batch.append((user, counts[user], f"{kind} {user}", page))
            found.append(sorted(batch))
        return found

    def verify(self, kinds: Sequence[str]) -> None:
        """The handler got what the plain computation makes, and the state is its counts."""
        assert [self.got[number] for number in range(len(self.files))] == self.expected(kinds)
        state = pss.read_state(self.spark, str(self.folder / "root"), "pages", config=self.config).collect()
        assert {row.key: row.value for row in state} == Counter(user for rows in self.files for user, _ in rows)


def found_in(values: Iterable[bytes | None]) -> Counter[Row]:
    """The rows in another output."""
    return Counter(tuple(json.loads(value or b"")) for value in values)


def flat(batches: Iterable[list[Row]]) -> Counter[Row]:
    return Counter(row for batch in batches for row in batch)


@pytest.mark.slow
def test_an_application_goes_back_and_a_standby_takes_over(spark: SparkSession, tmp_path: Path) -> None:
    """Its side inputs stay as they are. Outputs to other systems get both lines of batches, each of them once."""
    outputs = {"local.once": "exactly-once", "local.least": "at-least-once"}
    config: dict[str, object] = {f"streams.{name}.output.guarantee": kind for name, kind in outputs.items()}
    config |= {"job.standbytasks.replication.factor": 2}
    world = World(spark, tmp_path, [*outputs], config)
    world.name("old")
    world.publish(2, seed=1)
    world.run()
    saved = shutil.copytree(world.location, tmp_path / "saved")
    world.publish(2, seed=2)
    world.run()
    world.verify(["old"] * 4)
    before = flat(world.expected(["old"] * 4))

    world.name("new")
    world.set_back(saved, 2)
    world.publish(3, seed=3)
    with pytest.raises(StreamingQueryException, match='with `from_checkpoint="matching"`'):
        world.run()
    overrides = {**world.config, "job.root": str(tmp_path / "root")}

    others = containers_here()

    def loses_a_container(batch: int) -> None:
        if batch == 2:
            wait_until(has_standbys, "standbys of all tasks")
            kill(next(each for each in containers_here() if each not in others))

    def has_standbys() -> bool:
        with admin.open_job("seen", overrides=overrides) as job:
            shown = admin.status(job).standbys
        return len({each.task for each in shown if each.checkpoint_id is not None}) == TASKS

    world.run(loses_a_container, from_checkpoint="matching")
    kinds = ["old", "old", "new", "new", "new"]
    world.verify(kinds)
    with admin.open_job("seen", overrides=overrides) as job:
        shown = metrics_of(job)
    assert sum(int(getattr(value, "count", 0)) for key, value in shown.items() if key.name == "takeovers") > 0
    later = before + flat(world.expected(kinds)[2:])
    for name in outputs:
        parts = read_all(world.streams, name.removeprefix("local.")).values()
        values = [message[2] for part in parts for message in part]
        found = found_in(values)
        assert found == later if outputs[name] == "exactly-once" else found.keys() == later.keys()


@pytest.mark.slow
@pytest.mark.kafka
def test_an_application_with_output_to_kafka_goes_back(
    spark: SparkSession, tmp_path: Path, kafka_broker: KafkaBroker
) -> None:
    """Twice to the same copy. The changelog is in Kafka as well."""
    topic = new_topic(kafka_broker, TASKS)
    config = {
        **kafka_broker.system_config(),
        f"streams.kafka.{topic}.output.guarantee": "exactly-once",
        "stores.backup.factories": "changelog-stream",
        "stores.pages.changelog": f"kafka.{new_name('changelog')}",
    }
    world = World(spark, tmp_path, [f"kafka.{topic}"], config)
    world.name("old")
    world.publish(2, seed=1)
    world.run()
    saved = shutil.copytree(world.location, tmp_path / "saved")
    wanted = flat(world.expected(["old"] * 2))
    for seed in (2, 3):
        world.set_back(saved, 2)
        world.publish(2, seed=seed)
        world.run(from_checkpoint="matching")
        world.verify(["old"] * 4)
        wanted += flat(world.expected(["old"] * 4)[2:])
        assert found_in(value for _, value in read_committed(kafka_broker, topic)) == wanted
