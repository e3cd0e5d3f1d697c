"""The totals application on real containers, with commits step by step, local copies, and restores of any backend."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.checkpoint.record import CheckpointId
from penstock.errors import ContainerLostError, RetryableError
from penstock.job.paths import JobPaths
from penstock.state.backends.base import BackendContext, RestoreProgress
from penstock.state.engines.open import open_whatever
from penstock.state.restore import LocalCopies, restore_store
from penstock.wire.protocol import CLEAN_UP, OPEN, SNAPSHOT, UPLOAD, CleanUp, OpenEpoch, TakeSnapshot, UploadSnapshot
from tests.support.apps.container_app import messages
from tests.support.faults.plan import Faults
from tests.support.jobs.fault_jobs import faulty
from tests.support.processes.containers import DEADLINE_S, ContainerProcess, Job, _epochs

Markers = dict[str, dict[str, dict[str, str]]]
STORE = "totals"
FILES, FIRST, SECOND = "changelog-files", faulty("changelog-files"), faulty("SecondFiles")
A, B, C, D = messages(40), messages(30, 40), messages(20, 70), messages(25, 90)
"""The messages of four batches."""


class CommitJob(Job):
    """A job whose commits have numbers, which are their checkpoints' ids."""

    def __init__(
        self,
        folder: Path,
        containers: Sequence[ContainerProcess],
        *,
        tasks: int = 2,
        config: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(folder, containers, tasks=tasks, config=config)
        self.faults = Faults.of_root(str(self.root))
        self.notes: list[str] = []
        """The notes of the containers from the last `open_at`."""

    def open_at(self, number: int, markers: Markers, last_ended: int, *, same_run: bool = False) -> None:
        """Enter a new epoch everywhere, from the checkpoint of a commit. In the same run, stores may stay open."""
        if not same_run:
            self.begin_another_run()
        self.epoch = next(_epochs)
        self.notes = []
        for client in self.clients:
            request = OpenEpoch(self.package, last_ended, f"{number}-0", markers, (STORE,))
            own = request.for_container(self.tasks_of(client), ())
            self.notes += client.ask(OPEN, self.epoch, own, DEADLINE_S).notes

    def snapshot(self, number: int) -> None:
        """The synchronous part everywhere."""
        for client in self.clients:
            client.ask(SNAPSHOT, self.epoch, TakeSnapshot(f"{number}-0"), DEADLINE_S)

    def upload(self, number: int) -> Markers:
        """The part in the background, everywhere; the markers."""
        found: Markers = {}
        for client in self.clients:
            found.update(client.ask(UPLOAD, self.epoch, UploadSnapshot(f"{number}-0"), DEADLINE_S).markers)  # type: ignore[arg-type]
        return found

    def clean_up(self, number: int, markers: Markers) -> None:
        for client in self.clients:
            own = CleanUp(f"{number}-0", markers).for_tasks(self.tasks_of(client))
            client.ask(CLEAN_UP, self.epoch, own, DEADLINE_S)

    def whole_commit(self, number: int) -> Markers:
        self.snapshot(number)
        markers = self.upload(number)
        self.clean_up(number, markers)
        return markers

    # What is stored.

    def restored(self, markers: Markers, *backends: str) -> dict[bytes, bytes]:
        """The content that the backends, in this order, restore from the markers, in all tasks together."""
        found: dict[bytes, bytes] = {}
        wanted = backends or self.config.store(STORE).restore_factories
        for task in range(self.tasks):
            context = BackendContext(self.objects, JobPaths("totals", "1"), task, (STORE,), self.epoch, self.config)
            folder = self.folder / "restored" / f"{self.epoch}-{task}"
            settings = self.config.store(STORE)
            progress = RestoreProgress(threading.Event(), lambda _: None)
            restored = restore_store(
                lambda _: context,  # noqa: B023 - called before the next round
                task,
                STORE,
                wanted,
                markers[str(task)],
                folder,
                lambda path: open_whatever(settings, path),  # noqa: B023 - called before the next round
                progress,
            )
            found |= dict(restored.engine.scan(None, None))
            restored.engine.close()
        return found

    def store_folder(self, task: int) -> Path:
        """Where a task's store lies on this host."""
        return self.folder / "local" / "totals-1-uid" / STORE / str(task)

    def copy_ids(self, task: int) -> list[int]:
        """The commits there is a local copy of."""
        return [checkpoint_id.millis for checkpoint_id in LocalCopies(self.store_folder(task)).ids()]

    def copied(self, number: int) -> dict[bytes, bytes]:
        """The content of the local copies of a commit, in all tasks together."""
        found: dict[bytes, bytes] = {}
        for task in range(self.tasks):
            target = self.folder / "copied" / f"{self.epoch}-{number}-{task}"
            folder = self.store_folder(task)
            markers = json.loads((folder / f"copy-{number}-0.json").read_text())["markers"]
            assert LocalCopies(folder).take(CheckpointId(number, 0), markers, target)
            engine = open_whatever(self.config.store(STORE), target)
            found |= dict(engine.scan(None, None))
            engine.close()
        return found

    def data_of(self, label: str | None = None) -> Path:
        """The folder of all a backend has written: of `changelog-files`, or of a wrapped one."""
        return self.root / ("totals-1" if label is None else f"totals.{label}-1") / "state"


def opened(folder: Path, container: ContainerProcess, **config: object) -> CommitJob:
    """A job with the first batch in it."""
    job = CommitJob(folder, [container], config=config)
    job.open()
    job.run_batch(1, A)
    return job


def reconfigured(job: CommitJob, **config: object) -> CommitJob:
    """The same job with another configuration, as after a restart."""
    return CommitJob(job.folder, [job.homes[0]], config=config)


def upload_until_good(job: CommitJob, number: int) -> tuple[Markers, int]:
    """Upload as a driver does; the markers, and how many tries it took."""
    for tries in range(1, 20):
        try:
            return job.upload(number), tries
        except ContainerLostError:
            raise
        except RetryableError:
            continue
    raise AssertionError("no try was good")


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)
