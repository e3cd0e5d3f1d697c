"""The world of the soak: three brokers, topics, the load, the job's drivers, and what can be read of it all."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.checkpoint.log import CheckpointLog, LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.load import load_config
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.state.reading.reader import read_store
from penstock.system.local import LocalSystem
from penstock.testing.kafka_cluster import KafkaCluster
from tests.soak.driver import SOAK, TOKEN, Driver, of_starts
from tests.soak.job import AUDIT, INPUT, NAME, PANES, PARTITIONS, TOTALS
from tests.soak.load import Fates
from tests.soak.oracle import Event, Input, Positions
from tests.soak.readers import LocalReader, TopicReader
from tests.soak.waits import DEADLINE_S, BrokenError, wait_for
from tests.support.streams.kafka import QUIET, TIMEOUT_S
from tests.support.tools.places import ROOT

CHANGELOG = "totals-changelog"
STREAM_STORE = "totals"
COMPACTION_LAG_MS = 300_000
_SMALL = {"segment.bytes": str(1 << 20), "segment.ms": "30000"}


@dataclass(frozen=True)
class Settings:
    """The configuration that may differ from start to start."""

    slots: int = 2
    latency_ms: int = 0
    backups: tuple[str, ...] = ("changelog-files",)
    restores: tuple[str, ...] = ("changelog-files",)

    def keys(self) -> dict[str, object]:
        return {
            "spark.master": f"local[{self.slots}]",
            **({"job.latency.target.ms": self.latency_ms} if self.latency_ms else {}),
            "stores.backup.factories": ",".join(self.backups),
            "stores.restore.factories": ",".join(self.restores),
        }

    def __str__(self) -> str:
        way = f"direct way within {self.latency_ms} ms" if self.latency_ms else "no direct way"
        return f"local[{self.slots}], {way}, backups {' and '.join(self.backups)}, restores from {self.restores[0]}"


class LoadProcess:
    """The load, which is paused at first."""

    def __init__(self, folder: Path, servers: str, seed: int, rate: float) -> None:
        self.fates = Fates(folder / "journal.jsonl")
        self.fates.path.touch()
        with (folder / "load.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.load", servers, str(seed), str(rate), str(self.fates.path)],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(line.strip())
        self._answers.put("ended")

    def order(self, order: str) -> None:
        """Give an order and wait until it is done."""
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        try:
            answer = self._answers.get(timeout=2 * DEADLINE_S)
        except queue.Empty:
            raise BrokenError(f"the load does not {order}") from None
        if answer != order:
            raise BrokenError(f"the load says `{answer}` to `{order}`, and ended with {self.process.poll()}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class World:
    """Everything of a soak, in one folder."""

    folder: Path
    seed: int
    rate: float = 30.0
    cluster: KafkaCluster = field(default_factory=lambda: KafkaCluster(brokers=3, start_timeout_s=DEADLINE_S))
    settings: Settings = field(default_factory=Settings)
    input: Input = field(default_factory=Input)
    starts: int = 0

    def open(self) -> None:
        """Start brokers and load, and make the topics."""
        for name in ("tmp", "spark", "streams", "state"):
            (self.folder / name).mkdir(parents=True)
        self.cluster.start()
        forever = {"retention.ms": "-1"}
        compacted = {
            **_SMALL, "cleanup.policy": "compact", "min.compaction.lag.ms": str(COMPACTION_LAG_MS),
            "delete.retention.ms": str(COMPACTION_LAG_MS),
        }  # fmt: skip
        topics = {INPUT: forever, TOTALS: forever, PANES: forever, CHANGELOG: compacted}
        admin = AdminClient(self.cluster.client_options(), logger=QUIET)
        made = admin.create_topics([NewTopic(name, PARTITIONS, -1, config=own) for name, own in topics.items()])
        for name in topics:
            made[name].result(TIMEOUT_S)
        self.load = LoadProcess(self.folder, self.cluster.bootstrap_servers, self.seed, self.rate)
        self.topics = {name: TopicReader(self.cluster, name) for name in (INPUT, TOTALS, PANES)}
        self.audit = LocalReader(LocalSystem("local", str(self.folder / "streams")), AUDIT)
        self.ids: list[int] = []

    def close(self) -> None:
        """End everything, and remove what it left on the disk."""
        for process in of_starts():
            with contextlib.suppress(psutil.Error):
                process.kill()
        with contextlib.suppress(AttributeError):
            self.load.close()
            for reader in self.topics.values():
                reader.close()
        self.cluster.close()
        wait_for(lambda: not of_starts(), "the end of all processes")
        shutil.rmtree(self.folder, ignore_errors=True)

    # The job.

    @property
    def environ(self) -> dict[str, str]:
        return {
            **os.environ,
            SOAK: TOKEN,
            "PENSTOCK_HOME": str(self.folder / "home"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONUNBUFFERED": "1",
            "SPARK_LOCAL_DIRS": str(self.folder / "spark"),
            "TMPDIR": str(self.folder / "tmp"),
        }

    def write_config(self) -> Path:
        config = {
            "job.root": str(self.folder / "jobs"),
            "job.logged.store.base.dir": str(self.folder / "state"),
            "systems.local.path": str(self.folder / "streams"),
            "job.batch.interval.ms": 20,
            "job.batch.max.messages": 100,
            "job.batch.target.ms": 0,
            "job.retry.max": 20,
            "job.container.start.timeout.ms": int(DEADLINE_S * 1000),
            "task.commit.ms": 500,
            "task.checkpoint.retained": "10",
            "job.intermediate.stream.partitions": PARTITIONS,
            f"streams.kafka.{INPUT}.samza.offset.default": "oldest",
            f"streams.kafka.{INPUT}.idle.ms": 86_400_000,
            f"streams.kafka.{TOTALS}.output.guarantee": "exactly-once",
            f"streams.kafka.{PANES}.output.guarantee": "exactly-once",
            f"stores.{STREAM_STORE}.changelog": f"kafka.{CHANGELOG}",
            "stores.default.changelog.min.compaction.lag.ms": COMPACTION_LAG_MS,
            f"stores.{STREAM_STORE}.changelog.delete.retention.ms": COMPACTION_LAG_MS,
            "spark.driver.memory": "512m",
            "spark.ui.enabled": "false",
            **self.cluster.system_config(),
            **self.settings.keys(),
        }
        path = self.folder / "soak.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return path

    def start(self) -> Driver:
        self.starts += 1
        return Driver(self.folder, self.starts, self.write_config(), self.environ)

    def command(self, *words: str, status: int | None = 0, stdin: str = "") -> str:
        """Run a command of Penstock with the job's configuration: what it says.

        Raises:
            BrokenError: it ended with another status.
        """
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli", *words, "--config", str(self.folder / "soak.yaml")],
            cwd=self.folder, env=self.environ, input=stdin, capture_output=True, text=True, timeout=2 * DEADLINE_S,
            check=False,
        )  # fmt: skip
        if status is not None and done.returncode != status:
            raise BrokenError(f"penstock {' '.join(words)}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def log(self) -> LogView:
        objects = open_store(str(self.folder / "jobs"))
        try:
            return CheckpointLog(objects, JobPaths(NAME, "1")).read()
        finally:
            objects.close()

    def stored(self, store: str, checkpoint: CheckpointRecord) -> dict[str, Any]:
        """A store as of a checkpoint."""
        config = load_config(self.folder / "soak.yaml", default_job_name=NAME, environ={})
        return {key.decode(): json.loads(value) for _, key, value in read_store(config, store, checkpoint)}

    def scanned(self, store: str, checkpoint: CheckpointRecord) -> dict[str, Any]:
        """The same by the command."""
        said = self.command("state", "scan", NAME, store, "--version", str(checkpoint.id), "--json")
        return {entry["key"]: entry["value"] for entry in map(json.loads, said.splitlines())}

    def logged_bytes(self) -> int:
        """All that drivers and containers have logged; logs that were deleted count no more."""
        logs = [*self.folder.glob("driver-*.log"), *(self.folder / "state").rglob("*.log*")]
        return sum(path.stat().st_size for path in logs if path.exists())

    # What is there.

    def catch_up(self) -> None:
        """Read what the load has committed."""
        self.load.fates.catch_up()
        for partition, offset, _, value in self.topics[INPUT].new():
            event = json.loads(value or b"{}")
            self.ids.append(event["id"])
            at_s = self.load.fates.written_s.get(event["id"], 0.0)
            self.input.events[partition].append(Event(offset, event["id"], event["k"], event["n"], at_s))


def positions_of(record: CheckpointRecord) -> dict[int, int]:
    """The positions of a checkpoint in the input."""
    return {
        ssp.partition: offset
        for own in record.next_offsets.values()
        for ssp, offset in own.items()
        if ssp.stream == INPUT
    }


def behind(positions: Positions, ends: Positions) -> bool:
    """True if positions are at or behind these ends."""
    return all(positions.get(partition, 0) >= end for partition, end in ends.items())
