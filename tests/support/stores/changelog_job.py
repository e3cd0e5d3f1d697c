"""A job whose first store is backed up by the changelog files backend, with a plain dict beside it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from penstock.base.retry import SYSTEM_CLOCK, Clock
from penstock.objects.open import open_store
from penstock.state.backends.base import Garbage, RestoreProgress
from penstock.state.backends.changelog_files.factory import ChangelogFilesFactory
from penstock.state.backends.changelog_files.versions import ChangelogMarker, StoreSnapshot
from penstock.state.engines.engine import Changes
from penstock.state.engines.rocksdb import RocksDbEngine
from penstock.testing.state_backend_harness import BackendHarness, Content, EngineName
from tests.support.stores.hooked_store import Call, HookedStore

FOLDER = "contract-1/state/first/0"
PART_BYTES = 40_000
"""Small, so that a larger file is several objects."""


@dataclass(frozen=True, slots=True)
class Version:
    """The markers of a commit, and the content of the store then."""

    markers: Mapping[str, str]
    content: Content

    @property
    def marker(self) -> ChangelogMarker:
        """The first store's."""
        return ChangelogMarker.parse(self.markers["first"])


class Job:
    """Snapshots are made after `every` commits, and `seconds` after the last one; with 0 and 0 only where a test asks
    for one."""

    def __init__(
        self,
        directory: Path,
        engine: EngineName = "memory",
        *,
        every: int = 0,
        seconds: int = 0,
        changelog: bool = True,
        objects: HookedStore | None = None,
        max_part_bytes: int = PART_BYTES,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.objects = objects or HookedStore(open_store(f"memory://{directory}"))
        overrides = {
            "state.snapshot.interval.commits": every,
            "state.snapshot.interval.seconds": seconds,
            "state.changelog.enabled": changelog,
            "stores.first.factory": engine,
            "stores.second.factory": engine,
        }
        factory = ChangelogFilesFactory(max_part_bytes=max_part_bytes)
        self.harness = BackendHarness(factory, self.objects, directory, engine, overrides=overrides, clock=clock)

    def task(self, epoch: int, begun: Version | None = None) -> Task:
        """Open the task in an epoch, new or continued from a version."""
        return Task(self, epoch, begun)

    def restore(self, version: Version) -> tuple[bool, list[str]]:
        """True if the marker restores exactly the version's content; and the notes of the restore."""
        notes: list[str] = []
        progress = RestoreProgress(Event(), lambda _: None, notes.append)
        engine = self.harness.restore_engine(version.markers["first"], "first", progress)
        try:
            return dict(engine.scan(None, None)) == version.content, notes
        finally:
            engine.close()

    def restores(self, version: Version) -> bool:
        """True if the marker restores exactly the version's content, without notes."""
        return self.restore(version) == (True, [])

    def collect(
        self,
        retained: Iterable[Version],
        left: Iterable[Version],
        *,
        epoch: int,
        sweep: bool = False,
        dry_run: bool = False,
    ) -> Garbage:
        """Delete what only the versions that left need."""
        kept, gone = [own.markers for own in retained], [own.markers for own in left]
        return self.harness.collect(kept, gone, epoch=epoch, sweep=sweep, dry_run=dry_run)

    def stored(self, kind: str = "") -> set[str]:
        """The first store's objects: `delta`, `zip` or `files`; without a kind all of them."""
        return {key for key in self.objects.list(FOLDER) if not kind or kind_of(key) == kind}

    def snapshot(self, version: int, epoch: int = 1) -> StoreSnapshot:
        """A snapshot as it is stored."""
        return StoreSnapshot.decode(self.objects.get(zip_key(version, epoch)), "")

    def files_of(self, version: int, epoch: int = 1) -> set[str]:
        """The keys of a snapshot's shared files."""
        files = self.snapshot(version, epoch).shared.by_path().values()
        return {f"{FOLDER}/files/{blob.name}" for file in files for blob in file.blobs}

    def needed(self, versions: Iterable[Version]) -> set[str]:
        """All that must be there for these versions: what their markers name, and snapshots on their lineages."""
        needed: set[str] = set()
        for version in versions:
            deltas = set(version.marker.deltas())
            needed |= {delta_key(*delta) for delta in deltas}
            made = {(number, epoch) for number, epoch in deltas if zip_key(number, epoch) in self.stored("zip")}
            for snapshot in {*version.marker.snapshots, *made}:
                needed |= {zip_key(*snapshot), *self.files_of(*snapshot)}
        return needed


class Task:
    """The task in its container."""

    def __init__(self, job: Job, epoch: int, begun: Version | None) -> None:
        self.content = dict(begun.content) if begun else {}
        self._backup = job.harness.backup(epoch, begun.markers if begun else None)
        assert self._backup.content() == self.content
        self.manager = self._backup.manager

    def commit(self, changes: Changes | None = None, *, snapshot: bool = False, logged: bool = True) -> Version:
        """Change the first store and commit. `snapshot`: as the last commit of a run does, which makes one."""
        for key, value in (changes or {}).items():
            self.content.pop(key, None)
            if value is not None:
                self.content[key] = value
        markers = self._backup.commit_changes({"first": changes or {}}, last=snapshot, clean_up=logged)
        return Version(markers, dict(self.content))

    def commit_and_wait(self, changes: Changes | None = None, *, snapshot: bool = False) -> Version:
        """As `commit`; then wait for the snapshots that are being made."""
        version = self.commit(changes, snapshot=snapshot)
        self.finish()
        return version

    def compact(self) -> None:
        """Let RocksDB write all that the first store holds to new files, as it does in the background."""
        engine = self._backup.engines["first"]
        assert isinstance(engine, RocksDbEngine)
        engine._db.compact_range(None, None)

    def finish(self) -> None:
        """Wait for the snapshots that are being made."""
        self._backup.finish()

    def close(self) -> None:
        """Close the manager and the engines."""
        self._backup.close()


@contextmanager
def open_job(
    directory: Path, engine: EngineName = "memory", *, every: int = 0, seconds: int = 0, clock: Clock = SYSTEM_CLOCK
) -> Iterator[Job]:
    """A job that is closed in the end."""
    job = Job(directory, engine, every=every, seconds=seconds, clock=clock)
    try:
        yield job
    finally:
        job.objects.heal()
        job.harness.close()
    assert not job.harness.copies


def delta_key(version: int, epoch: int = 1) -> str:
    return f"{FOLDER}/{version}.{epoch}.delta"


def zip_key(version: int, epoch: int = 1) -> str:
    return f"{FOLDER}/{version}.{epoch}.zip"


def kind_of(key: str) -> str:
    """The kind of a store's object: `delta`, `zip` or `files`."""
    return "files" if "/files/" in key else key.rpartition(".")[2]


def of_a_snapshot(call: Call, key: str) -> bool:
    """True if a call writes a part of a snapshot."""
    return call == "put" and kind_of(key) in {"zip", "files"}


def some(rng: random.Random, keys: int = 40, size: int = 30) -> dict[bytes, bytes | None]:
    """A few puts and deletes of a few keys, at least one of them."""
    chosen = [b"%d" % rng.randrange(keys) for _ in range(rng.randrange(1, 8))]
    return {key: None if rng.random() < 0.25 else rng.randbytes(rng.randrange(size)) for key in chosen}


def much(rng: random.Random, first: int = 0, count: int = 300) -> dict[bytes, bytes | None]:
    """Puts of 300 bytes that do not compress under keys of their own: 300 of them are three objects."""
    return {b"%06d" % number: rng.randbytes(300) for number in range(first, first + count)}
