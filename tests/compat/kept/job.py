"""A job that a version leaves behind when it is stopped in the middle, and that another version continues.

A kept job is never changed: what earlier versions have left of it must fit. Something new is another job beside it. It
uses of Penstock what users use, and `InProcessDriver`.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.log import CheckpointLog, LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.driver.show.exports import MetricsExports
from penstock.errors import PenstockError
from penstock.job import lease
from penstock.job.identity import adopt
from penstock.job.paths import JobPaths
from penstock.objects.open import open_job_root
from penstock.objects.store import ObjectStore
from penstock.system.base import OffsetRange
from penstock.system.local import LocalSystem
from penstock.system.registry import open_systems
from penstock.testing import SettableClock
from penstock.testing.in_process import InProcessDriver

TASKS = 2
HOUR_MS = 3_600_000
LEASE_MS = 100
RUN = "kept"
"""The run's name, under which every start continues it."""


@dataclass(frozen=True, slots=True)
class Given:
    """A message of an input."""

    stream: str
    partition: int
    time: int
    key: str | None
    value: Any

    @property
    def record(self) -> tuple[int, bytes | None, bytes]:
        return self.time, None if self.key is None else self.key.encode(), json.dumps(self.value).encode()


Results: TypeAlias = Mapping[str, Sequence[Any]]
"""Output stream -> the values in it, in any order."""
State: TypeAlias = Mapping[str, Mapping[Any, Any]]
"""Store -> key -> value, as `penstock state scan` shows them."""


class KeptJob(ABC):
    """An application with its input, and what must come of it by a plain computation."""

    name: str
    streams: Mapping[str, int] = {}
    """The inputs and outputs in the system `local`, with their partitions."""
    in_between = "publish"
    """The step of the last commit at which the run is killed."""

    @abstractmethod
    def app(self) -> ps.StreamApplication: ...

    @abstractmethod
    def keys(self, home: Path) -> Mapping[str, object]:
        """The configuration that is the job's own."""

    @abstractmethod
    def parts(self) -> tuple[list[Given], list[Given], list[Given], list[Given]]:
        """Input that is committed and published; that is committed and not published; that is not read; and that
        comes when another version continues the job."""

    @abstractmethod
    def results(self, committed: Sequence[Given], rest: Sequence[Given]) -> Results:
        """The outputs at the end. `rest` is read by the version that continues the job."""

    @abstractmethod
    def state(self, committed: Sequence[Given], rest: Sequence[Given]) -> State:
        """The content of stores, once both are read."""

    def left(self, home: KeptHome) -> None:  # noqa: B027
        """Called once the run was killed, for what else is there then. By default, nothing is."""

    def before(self, home: KeptHome) -> None:  # noqa: B027
        """Called before a run begins, for what comes from elsewhere. By default, nothing does."""

    def in_the_end(self, home: KeptHome) -> None:  # noqa: B027
        """Called once the job has ended, to check what else must hold. By default, nothing must."""


class DiedError(PenstockError):
    """The run was killed here."""


class KeptHome:
    """A folder with everything of one kept job: the job root, streams, and the stores of the host."""

    def __init__(self, folder: Path, job: KeptJob) -> None:
        self.folder, self.job = folder, job
        self.paths = JobPaths(job.name, "1")
        self.system = LocalSystem("local", str(folder / "streams"))
        self.config = self._config()
        self.objects: ObjectStore = open_job_root(self.config.job)

    def _config(self) -> JobConfig:
        stores = [store.name for store in self.job.app().graph().stores]
        return load_config(overrides=self.options, stores=stores, environ={})

    @property
    def options(self) -> dict[str, object]:
        """All keys of the configuration."""
        return {
            "job.name": self.job.name,
            "job.root": str(self.folder / "jobs"),
            "job.logged.store.base.dir": str(self.folder / "state"),
            "job.lease.ms": LEASE_MS,
            "systems.local.path": str(self.folder / "streams"),
            "app.run.id": RUN,
            "job.batch.target.ms": 0,
            "job.batch.interval.ms": 1,
            "job.batch.max.messages": 5,
            "task.commit.ms": 0,
            "task.checkpoint.retained": 3,
            **self.job.keys(self.folder),
        }

    @property
    def arguments(self) -> list[str]:
        """The job's name and its configuration, for a command about it."""
        own = {key: value for key, value in self.options.items() if key != "job.name" and value is not None}
        file = self.folder / "job.yaml"
        file.write_text(json.dumps(own))
        file.chmod(0o600)  # it may have a secret
        return [self.paths.root, "--config", str(file)]

    @property
    def of_streams(self) -> list[str]:
        """The options of a command about streams."""
        return ["-c", f"systems.local.path={self.folder / 'streams'}"]

    @property
    def log(self) -> LogView:
        return CheckpointLog(self.objects, self.paths).read()

    @property
    def last(self) -> CheckpointRecord:
        latest = self.log.latest
        assert latest is not None
        return latest

    def put(self, messages: Iterable[Given]) -> None:
        writer = self.system.writer(None)
        for each in messages:
            writer.append(SystemStreamPartition("local", each.stream, each.partition), [each.record])
        writer.close()

    def values(self, stream: str) -> list[Any]:
        """The values of a stream, by partition and offset."""
        return [json.loads(value or b"null") for _, value in self.records(stream)]

    def records(self, stream: str) -> Iterator[tuple[bytes | None, bytes | None]]:
        """(key, value) of everything in a stream, by partition and offset."""
        admin, reader = self.system.admin(), self.system.reader()
        for partition, ends in sorted(admin.offsets(stream).items()):
            ssp = SystemStreamPartition("local", stream, partition)
            for chunk in reader.read(OffsetRange(ssp, ends.oldest, ends.upcoming), 1000):
                yield from ((key, value) for _, _, key, value, *_ in chunk)
        reader.close()
        admin.close()

    @contextmanager
    def driver(self, now_ms: int, **given: Any) -> Iterator[InProcessDriver]:
        """A driver that holds the job's lease. It is killed in the end, and its lease stays."""
        holder = lease.LeaseHolder.of_this_process(RUN)
        held = lease.acquire(self.objects, self.paths, holder, LEASE_MS, deadline=time.monotonic() + 60)
        clock = SettableClock(now_ms)
        graph = self.job.app().graph()
        with ExitStack() as undo:
            systems = open_systems(self.config)
            made = InProcessDriver(graph, self.config, self.objects, systems, clock=clock, **given)
            undo.callback(made.close)
            (*_, claim) = made.log.read().claims
            shown = [each for part in made.loop.parts.wings for each in part.shown()]
            token = held.state.token
            exports = MetricsExports(made.job, claim.run_id, made.board, lambda: True, token, shown)
            undo.callback(exports.close)
            yield made
        if given:
            held.release()

    def write(self, now_ms: int) -> None:
        """Run the job up to its third part, and kill the run in the middle of a commit."""
        job, admin = self.job, self.system.admin()
        for stream, partitions in job.streams.items():
            admin.create_stream(stream, partitions)
        published, committed, unread, _ = job.parts()
        job.before(self)
        with self.driver(now_ms) as driver:
            driver.loop.start()
            for messages in (published[: len(published) // 2], published[len(published) // 2 :], committed):
                self.put(messages)
                while has_unread(driver):
                    driver.loop.step()
                if messages is committed:
                    driver.fleet.at = dying_at(job.in_between)
                    break
                driver.loop.commit()
            with suppress(DiedError):
                driver.loop.commit()
        self.put(unread)
        job.left(self)

    def move_in(self) -> None:
        """Make the folder the job's, as it is now in another place."""
        adopt(self.objects, self.paths, str(self.folder / "jobs"), moved=True)

    def finish(self, now_ms: int) -> None:
        """Put the rest of the input, and run to the end of it."""
        self.put(self.job.parts()[3])
        self.job.before(self)
        ended: str | None = "drained"
        while ended == "drained":  # an earlier request to drain comes first
            with self.driver(now_ms, until_latest=True) as driver:
                driver.loop.run()
                ended = self.last.ended
        self.job.in_the_end(self)

    def close(self) -> None:
        self.objects.close()


def has_unread(driver: InProcessDriver) -> bool:
    """True if an input has messages. Those in durable streams do not count."""
    ends = driver.job.streams.ends()
    return any(ends[at.ssp].upcoming > offset for at, offset in driver.loop.boundary.positions.items())


def dying_at(step: str) -> Any:
    def at(name: str) -> None:
        if name == step:
            raise DiedError(f"the run was killed at the step `{step}`")

    return at
