"""Two forms of an application that take over from each other as processes, messages that are published all the time,
and what must come out of them."""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import count, groupby
from pathlib import Path
from typing import Any

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import NotFoundError
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from penstock.replay.wing import REPLAY
from penstock.system.base import System
from penstock.system.local import LocalSystem
from penstock.system.partitioner import partition_of
from penstock.testing.system_contract import read_all
from tests.support.jobs.home import StartedProcess, wait_until
from tests.support.processes.python import PENSTOCK

Sent = tuple[str, dict[str, Any]]
"""The key and the value of a message."""
KEYS = ("N1", "N2", "N3", "N14", "N5")
WINDOW_MS = 10_000
OLD, NEW = "one-1", "two-1"
"""The names of the two jobs."""
FORMS = {OLD: "old", NEW: "new"}
"""The file of each job has this name, and each of its messages says so."""
PARTITIONS = 2
ASKED, HANDED = "which is asked to stop", f"job {OLD} has handed over: "
"""The command logs these on its way."""
CONFIG: dict[str, object] = {
    "spark.master": "local[2]",
    "task.commit.ms": 300,
    "job.batch.interval.ms": 20,
    "job.batch.max.messages": 200,
    "job.intermediate.stream.partitions": PARTITIONS,
}
_APPLICATION = """
import penstock as ps


class AddUp(ps.StreamTask):
    def init(self, context):
        self.miles = context.store("miles")

    def process(self, envelope, collector, coordinator):
        self.miles[envelope.key] = total = self.miles.get(envelope.key, 0) + envelope.value["miles"]
        collector.emit(key=envelope.key, value={{"miles": total, "by": "{form}"}})


def shown(pane):
    return {{"from": pane.window.start_ms, "trips": pane.message["trips"], "by": "{form}"}}


app = ps.StreamApplication("trips")
app.store("miles")
trips = app.input("{trips}", timestamp=lambda trip: trip["at"], watermark=ps.BoundedOutOfOrderness(0))
totals = trips.partition_by(lambda trip: trip["plane"], id="by-plane").process(AddUp, stores=["miles"], id="add-up")
totals.send_to(app.output("{totals}"))
windows = ps.Windows.tumbling({window_ms}, aggregates={{"trips": ps.Count()}})
panes = trips.partition_by(lambda trip: trip["town"], id="by-town").window(windows, id="windows")
panes.map(shown, id="shown").send_to(app.output("{panes}"))
"""
"""The sum after each message, and the messages of each town and window."""


class DeployedJobs:
    """The jobs, their streams, and the messages as they were published."""

    def __init__(
        self,
        folder: Path,
        *,
        system: System | None = None,
        config: Mapping[str, object] | None = None,
        streams: Sequence[str] = ("local.trips", "local.totals", "local.panes"),
        seed: int = 1,
    ) -> None:
        """
        Args:
            folder: the working directory of the commands, and the place of all files.
            system: has the streams; by default the folder has. Closed by nobody.
            config: more configuration for all commands.
            streams: the input and the outputs, which exist if a system is given.
            seed: of the messages.
        """
        self.folder = folder
        self.trips, self.totals, self.panes = streams
        self.system = system or LocalSystem("local", str(folder / "home" / "streams"))
        if system is None:
            self.system.admin().create_stream("trips", PARTITIONS)
        once = {f"streams.{stream}.output.guarantee": "exactly-once" for stream in streams[1:]}
        keys = {**CONFIG, f"streams.{self.trips}.idle.ms": 0, **once, **(config or {})}
        (folder / "jobs.yaml").write_text(json.dumps(keys), encoding="utf-8")  # JSON is YAML
        for form in FORMS.values():
            text = _APPLICATION.format(
                form=form, trips=self.trips, totals=self.totals, panes=self.panes, window_ms=WINDOW_MS
            )
            (folder / f"{form}.py").write_text(text, encoding="utf-8")
        self.sent: list[Sent] = []
        self._random = random.Random(seed)
        self._numbers = count(1)

    # What is published.

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Publish some messages every now and then, as long as the block lasts."""
        over = threading.Event()

        def publish() -> None:
            while not over.wait(0.05):
                self.publish(self._random.randint(0, 6))

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def publish(self, number: int) -> None:
        """Publish messages. A second of event time passes between two of them."""
        self._send([(self._random.choice(KEYS), 1000 * (len(self.sent) + 1 + each)) for each in range(number)])

    def close_windows(self) -> None:
        """Publish a message to each partition whose time is behind all windows that have messages."""
        behind = (1000 * len(self.sent) // WINDOW_MS + 1) * WINDOW_MS
        while 1000 * (len(self.sent) + 1) < behind:
            self.publish(1)
        for partition in range(PARTITIONS):
            key = next(key for key in KEYS if partition_of(key.encode(), PARTITIONS) == partition)
            self._send([(key, 1000 * (len(self.sent) + 1))])

    def _send(self, trips: Sequence[tuple[str, int]]) -> None:
        with closing(self.system.writer(None)) as writer:
            for key, at in trips:
                value = {"plane": key, "miles": self._random.randint(1, 9), "at": at, "town": key[:2]}
                ssp = self._ssp(self.trips, partition_of(key.encode(), PARTITIONS))
                writer.append(ssp, [(at, key.encode(), json.dumps(value).encode())])
                self.sent.append((key, value))

    def _ssp(self, stream: str, partition: int) -> SystemStreamPartition:
        system, _, name = stream.partition(".")
        return SystemStreamPartition(system, name, partition)

    # What comes out.

    def read(self, stream: str) -> list[list[Sent]]:
        """The messages of an output, of each partition in its order; none if it does not exist yet."""
        try:
            with closing(self.system.admin()) as admin:
                partitions = sorted(admin.offsets(stream.partition(".")[2]))
        except NotFoundError:
            return []
        return [
            [
                ((key or b"").decode(), json.loads(value or b"null"))
                for _, _, key, value, *_ in read_all(self.system, self._ssp(stream, partition))
            ]
            for partition in partitions
        ]

    def settle(self, command: Command, *forms: str) -> None:
        """Publish what closes all windows, wait until all output is there, and verify it."""
        self.close_windows()
        for stream, expected in self._expected().items():
            wait_until(lambda: self.length(stream) >= len(expected) or not command.running, stream)  # noqa: B023
            assert command.running, command.log[-8000:]
        self.verify(*forms)

    def await_output_of(self, command: Command, form: str) -> None:
        """Wait until this form has sent something. The command may not end before."""
        wait_until(
            lambda: (
                any(value["by"] == form for own in self.read(self.totals) for _, value in own) or not command.running
            ),
            f"output of {form}",
        )
        assert command.running, command.log[-8000:]

    def length(self, stream: str) -> int:
        """The number of messages of an output."""
        return sum(map(len, self.read(stream)))

    def verify(self, *forms: str) -> None:
        """Each sum is there once, and each pane of a window that is over, from these forms one after the other."""
        for stream, expected in self._expected().items():
            found = self.read(stream)
            left = [(key, {n: v for n, v in value.items() if n != "by"}) for own in found for key, value in own]
            same_messages(left, expected, stream)
            for own in found:
                seen = [form for form, _ in groupby(value["by"] for _, value in own)]
                assert seen == list(forms), f"{stream}: {seen}"

    def _expected(self) -> dict[str, list[Sent]]:
        return {self.totals: self._expected_totals(), self.panes: self._expected_panes()}

    def _expected_totals(self) -> list[Sent]:
        """The sum after each message."""
        sums = Counter[str]()
        found = []
        for key, value in self.sent:
            sums[key] += value["miles"]
            found.append((key, {"miles": sums[key]}))
        return found

    def _expected_panes(self) -> list[Sent]:
        """The messages of each town and window, without the last window, which is not over."""
        last = max(value["at"] for _, value in self.sent) // WINDOW_MS
        panes = Counter((value["town"], value["at"] // WINDOW_MS) for _, value in self.sent)
        return [
            (town, {"from": number * WINDOW_MS, "trips": trips})
            for (town, number), trips in panes.items()
            if number < last
        ]

    # The jobs.

    def await_checkpoints(self, job: str, number: int) -> None:
        """Wait until a job has made so many checkpoints, counting those that are seen."""
        seen = set[str]()

        def are_there() -> bool:
            if (record := self.last(job)) is not None:
                seen.add(str(record.id))
            return len(seen) >= number

        wait_until(are_there, f"{number} checkpoints of {job}")

    def last(self, job: str) -> CheckpointRecord | None:
        """The last checkpoint of a job; None if it has none."""
        log = CheckpointLog(FileObjectStore(self.folder / "home" / "jobs"), JobPaths(*job.rsplit("-", 1)))
        return log.read("report").latest

    def made(self, job: str) -> str:
        """The last checkpoint of the other job whose batches a job has made; empty: none."""
        record = self.last(job)
        return "" if record is None else record.section(REPLAY).followed.made

    def run(self, job: str, *options: str, **on: Any) -> Command:
        """`penstock run` of a job."""
        return self._command(job, "run", self._app(job), *options, **on)

    def deploy(self, job: str, *options: str, **on: Any) -> Command:
        """`penstock deploy`: the job takes over from the other one."""
        (other,) = {OLD, NEW} - {job}
        return self._command(job, "deploy", other, self._app(job), *options, **on)

    def _app(self, job: str) -> str:
        return f"{self.folder / FORMS[job]}.py:app"

    def _command(self, job: str, *words: str, **on: Any) -> Command:
        given = ["--config", str(self.folder / "jobs.yaml"), "-c", f"job.name={job.rpartition('-')[0]}"]
        log = self.folder / f"{next(self._numbers)}-{words[0]}-{job}.log"
        return Command(self.folder, log, [sys.executable, *PENSTOCK, *words, *given], **on)

    @contextmanager
    def started(self, job: str, **on: Any) -> Iterator[Command]:
        """A job that runs, and has sent something."""
        before = self.length(self.totals)
        with self.run(job, **on) as command:
            wait_until(lambda: self.length(self.totals) > before or not command.running, f"output of {job}")
            assert command.running, command.log
            yield command


class Command(StartedProcess):
    """A command that runs a job."""

    def await_log(self, text: str) -> None:
        """Wait until it has logged this. It may not end before."""
        wait_until(lambda: text in self.log or not self.running, text)
        assert text in self.log, self.log[-8000:]

    def ended(self, status: int | None = 0) -> str:
        """Wait for its end; its log.

        Args:
            status: its exit status; None: any but 0.
        """
        wait_until(lambda: not self.running, "the end of the command")
        found = self.process.returncode
        assert found != 0 if status is None else found == status, f"status {found}: {self.log[-8000:]}"
        return self.log

    def stopped(self) -> None:
        """Stop it. Its end must be a good one."""
        self.signal(signal.SIGTERM)
        self.ended()


def same_messages(found: Sequence[Sent], expected: Sequence[Sent], what: str) -> None:
    """Fail with the first messages that are missing or there too often."""
    there, wanted = Counter(map(repr, found)), Counter(map(repr, expected))
    missing, more = wanted - there, there - wanted
    assert not missing + more, (
        f"{what}: of {len(expected)} messages {missing.total()} are missing and {more.total()} are too many: "
        f"{sorted(missing)[:8]}, {sorted(more)[:8]}"
    )
