"""The pushed tables of a run: one thread looks for new versions, builds and publishes them, beside the batches.

Each table goes from its source to a published version by itself.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.api.side_inputs import PushedTable, TableCandidate
from penstock.base.retry import Clock
from penstock.errors import ConfigError, FencedError, NotFoundError, PenstockError, RetryableError
from penstock.graph.stores import StoreSpec
from penstock.job.board import Board
from penstock.start.job import ClaimedJob
from penstock.tables.build import (
    BuildRequest,
    SourceVersion,
    TableBuilder,
    TableRefusedError,
    VersionPlace,
    check_candidate,
    check_rows,
    find_place,
    read_version,
)
from penstock.tables.manifest import PublishedVersion, TableFile, TableManifest, fingerprint_of, pushed_table
from penstock.tables.registry import ChosenVersion, TableRegistry, VersionRefusal, build_name, refusal_of

logger = logging.getLogger(__name__)
_TRIES = 3
"""Builds of a version before a failure that may pass counts as the version's fault."""


@dataclass(slots=True)
class TableBuild:
    """Looks for versions of one table, builds and publishes them. Used by one thread."""

    spec: StoreSpec
    tasks: int
    epoch: int
    """The epoch of the run's first claim, which is higher than those of all runs before."""
    registry: TableRegistry
    refusal: Board[VersionRefusal]
    builder: TableBuilder
    retained: int
    needed: Callable[[str], Collection[int]]
    """The versions of a table that containers read or load."""
    check_owner: Callable[[], None]
    """Reads the log; raises FencedError if another driver has the job."""
    report: Callable[[str, PublishedVersion], None]
    """Called with the version that batches should read, whenever it is decided."""
    clock: Clock
    _built_from: VersionPlace | None = None
    """The place of the newest version: nothing is to be done until the source has a newer one."""
    _refused: str = ""
    """The version of the source that was refused."""
    _note: str = ""
    _failed: dict[str, int] = field(default_factory=dict)
    """Version of the source → builds that failed with an error that may pass. Has at most one entry."""
    _collects: bool = True

    @property
    def name(self) -> str:
        return self.spec.name

    def look(self) -> None:
        """Report the version to use, then build the source's newest version, if it is another.

        Raises:
            RetryableError: a store failed; the next look tries again.
            FencedError: another driver has the job.
        """
        choice = self._choose()
        if self._collects:
            self.registry.collect(self.epoch)
            self._collects = False
        try:
            source = self._new_source(choice)
            if source is None:
                return
            if self._build(source, alone=choice.version is None) is not None:
                self._choose()
                self._retain()
        except TableRefusedError as error:
            self._refuse(str(error), str(error), choice)

    def _choose(self) -> ChosenVersion:
        choice = self.registry.choose(fingerprint_of(self.spec, self.tasks))
        pinned = choice.version is not None and self.registry.pinned() == choice.version.version
        self.report(self.name, PublishedVersion(choice.version, pinned, choice.warning or self._note))
        return choice

    def _new_source(self, choice: ChosenVersion) -> SourceVersion | None:
        """The version to build; None if there is nothing new. Raises TableRefusedError if the source is not a
        complete version."""
        side = pushed_table(self.spec)
        place = find_place(self.builder, side)
        if place is None:
            self._say(
                f"`{side.path}` has no complete version: neither `_manifest.json` nor `_SUCCESS` is in it or in one of "
                "its folders. Write one of them when all files of a version are there",
                choice,
            )
            return None
        if place == self._built_from and choice.version is not None:  # without one, it was lost
            return None
        try:
            source = read_version(self.builder, side, place)
        except NotFoundError:  # it was replaced meanwhile: the next look finds the other one
            return None
        newest = self._newest()
        if newest is not None and (newest.source, newest.source_version) == (source.url, source.version):
            self._built_from = place
            return None
        return None if source.version == self._refused else source

    def _newest(self) -> TableManifest | None:
        """The newest version that this job could use, whether pinned or not."""
        wanted = fingerprint_of(self.spec, self.tasks)
        fitting = [each for each in self.registry.versions().manifests if each.fingerprint == wanted]
        return fitting[-1] if fitting else None

    def _build(self, source: SourceVersion, *, alone: bool) -> TableManifest | None:
        """Build and publish. Returns None if the version was refused, the source has changed meanwhile, or the next
        look tries again."""
        build, began = build_name(self.epoch, secrets.token_hex(4)), self.clock.monotonic()
        logger.info("table `%s`: %s of `%s` is being built", self.name, source.version, source.url)
        published = None
        try:
            files = self.builder.build(BuildRequest(self.spec, self.tasks, source, build, alone))
            if self._changed(source):
                logger.info(
                    "table `%s`: %s of `%s` is not published, because the newest version is another one now. That one "
                    "is built next",
                    *(self.name, source.version, source.url),
                )
                return None
            published = self._publish(source, build, files)
        except TableRefusedError as error:
            if not self._changed(source):
                self._refuse(source.version, str(error), self._choose())
        except ConfigError as error:
            self._refuse(source.version, str(error), self._choose())
        except RetryableError as error:
            self._count_failure(source, error)
        finally:
            self._collects = published is None  # by the next look: what may follow is then known
        if published is not None:
            seconds = self.clock.monotonic() - began
            logger.info(
                "table `%s`: version %d is published, %s of `%s` (%d rows, %d files, %d bytes, %.1f s)",
                *(self.name, published.version, source.version, source.url, published.rows),
                *(len(published.files), published.size_bytes, seconds),
            )
        return published

    def _changed(self, source: SourceVersion) -> bool:
        """True if the source has changed since it was read, or a later version came."""
        if source.delta_version is not None:  # its versions never change
            return False
        side = pushed_table(self.spec)
        place = find_place(self.builder, side)
        try:
            return place is None or read_version(self.builder, side, place) != source
        except (TableRefusedError, NotFoundError):
            return True

    def _publish(self, source: SourceVersion, build: str, files: tuple[TableFile, ...]) -> TableManifest:
        rows, newest = sum(file.rows for file in files), self._newest()
        check_rows(source, rows)
        previous = None if newest is None else newest.rows
        check_candidate(pushed_table(self.spec), TableCandidate(self.name, source.url, source.version, rows, previous))
        published = self.registry.publish(
            TableManifest(
                self.name,
                0,
                self.epoch,
                build,
                source.url,
                source.version,
                rows,
                self.clock.now_ms(),
                fingerprint_of(self.spec, self.tasks),
                files,
            )
        )
        self._refused = self._note = ""
        self._failed.clear()
        with suppress(RetryableError):  # it only informs
            self.refusal.remove()
        return published

    def _count_failure(self, source: SourceVersion, error: RetryableError) -> None:
        tries = self._failed.get(source.version, 0) + 1
        self._failed = {source.version: tries}
        if tries == _TRIES:
            self._refuse(source.version, f"it failed {tries} times, the last time with: {error}", self._choose())
        else:
            logger.warning("table `%s`: %s was not built, and is tried again: %s", self.name, source.version, error)

    def _refuse(self, key: str, reason: str, choice: ChosenVersion) -> None:
        """Log and show a refusal, once. The version that batches read stays."""
        version = "" if key == reason else f"{key} of "
        text = (
            f"{version}`{pushed_table(self.spec).path}` is refused: {reason}. It is not tried again until the source "
            "changes or the job starts again: push a corrected version"
        )
        if key == self._refused:
            return
        self._refused = key
        self._say(text, choice, error=True)
        with suppress(RetryableError):  # it only informs
            self.refusal.put(VersionRefusal("" if key == reason else key, reason, self.clock.now_ms()))

    def _say(self, text: str, choice: ChosenVersion, *, error: bool = False) -> None:
        if text != self._note:
            used = (
                "it has no version yet, and the first batch waits for one"
                if choice.version is None
                else f"version {choice.version.version} stays"
            )
            (logger.error if error else logger.warning)("table `%s`: %s (%s)", self.name, text, used)
        self._note = text
        self._choose()

    def _retain(self) -> None:
        """Delete versions that nobody needs. The next build tries again after a failure."""
        try:
            self.registry.retain(self.retained, self.needed(self.name), self.check_owner)
        except FencedError:
            raise
        except PenstockError as failure:
            logger.warning("old versions of table `%s` were not deleted: %s", self.name, failure)


_JOIN_SECONDS, _CANCEL_SECONDS = 30.0, 0.5
NOT_LOOKED = PublishedVersion(None, note="its source is looked at for the first time")


class TableBuilds:
    """Knows the version of each table that batches should read, as of the last look, and builds new versions.

    `published` may be called by any thread, and never waits. Looks are made by one thread: the one that `start` makes,
    or the caller's.
    """

    def __init__(
        self,
        job: ClaimedJob,
        builder: TableBuilder,
        needed: Callable[[str], Collection[int]] = lambda _: (),
    ) -> None:
        """`needed`: table → the versions that containers read or load. Called by the thread that looks."""
        self._builder = builder
        self._clock = clock = job.clock
        self._poll_s = job.config.tables.poll_ms / 1000
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._published: dict[str, PublishedVersion] = {}
        self._failures: dict[str, str] = {}
        self._tables = [
            TableBuild(
                spec,
                job.settings.tasks,
                job.claim.epoch,
                TableRegistry(job.objects, job.paths, spec.name),
                refusal_of(job.objects, job.paths, spec.name),
                builder,
                job.config.tables.versions_retained,
                needed,
                job.log.check_owner,
                self._report,
                clock,
            )
            for spec in job.topology.graph.stores
            if isinstance(spec.side, PushedTable)
        ]
        self._thread = threading.Thread(target=self._run, name="penstock-tables", daemon=True)

    def published(self, table: str) -> PublishedVersion:
        with self._lock:
            return self._published.get(table, NOT_LOOKED)

    def start(self) -> None:
        """Look every `tables.poll.ms` until `close`. Without tables, there is no thread. Idempotent; called by the
        thread that calls `close`."""
        if self._tables and self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """Stop looking, and cancel the build that is under way. Idempotent. The next run collects the remains of a
        build."""
        self._closing.set()
        deadline = self._clock.monotonic() + _JOIN_SECONDS
        while self._thread.is_alive() and self._clock.monotonic() < deadline:
            self._builder.cancel()  # again and again: a build may be about to submit its job
            self._thread.join(_CANCEL_SECONDS)

    def look(self) -> None:
        """Look at every table once. Failures are logged, and the next look tries again.

        Raises:
            FencedError: another driver has the job.
        """
        for table in self._tables:
            if self._closing.is_set():
                return
            try:
                table.look()
            except FencedError:
                raise
            except PenstockError as error:
                self._failed(table.name, str(error))
            except Exception as error:  # the thread must not end because of one table
                logger.exception("looking for a new version of table `%s` failed", table.name)
                self._failed(table.name, repr(error))
            else:
                self._failures.pop(table.name, None)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.look()
            except FencedError as error:  # the run loop finds out by itself
                logger.info("no more versions of tables are built: %s", error)
                return
            self._clock.wait(self._closing, self._poll_s)

    def _failed(self, table: str, text: str) -> None:
        if self._closing.is_set():
            return
        if self._failures.get(table) != text:
            logger.warning("table `%s`: looking for a new version failed; the next look tries again: %s", table, text)
        self._failures[table] = text
        before = self.published(table)
        self._report(table, PublishedVersion(before.manifest, before.pinned, text))

    def _report(self, table: str, published: PublishedVersion) -> None:
        with self._lock:
            self._published[table] = published
