"""The versions of one table in the object store: published, found and chosen.

A build puts its files below a folder that no other build has; then its manifest is put under the next number, if
that is free. Until then nobody sees any of it. A driver that takes a table over publishes a fence before it deletes
the unfinished builds of earlier drivers: one of these, should it still be alive, finds the fence under the number
that it wants, and publishes nothing.

A table has two boards: the version chosen with `penstock table use`, and the last version that was refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.base.documents import Count, Positive
from penstock.base.retry import Retry, retry
from penstock.errors import CorruptError, FencedError, IncompatibleError, NotFoundError, PenstockError, RetryableError
from penstock.job.board import Board
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.tables.manifest import TableFile, TableFingerprint, TableManifest


@dataclass(frozen=True, slots=True)
class PublishedVersions:
    """The published versions of a table."""

    manifests: tuple[TableManifest, ...] = ()
    """The versions, ascending. Fences are not among them."""
    unreadable: Mapping[int, str] = field(default_factory=dict)
    """Number of a version → the reason why it cannot be read."""

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(each.version for each in self.manifests)

    def of(self, version: int) -> TableManifest | None:
        return next((each for each in self.manifests if each.version == version), None)

    @property
    def newest(self) -> TableManifest | None:
        return self.manifests[-1] if self.manifests else None


@dataclass(frozen=True, slots=True)
class ChosenVersion:
    """The version to use, with a warning for the log and `status`."""

    version: TableManifest | None
    """None: none of the versions serves this job."""
    warning: str | None = None


def choose(versions: PublishedVersions, pinned: int | None, wanted: TableFingerprint) -> ChosenVersion:
    """Choose the pinned version, otherwise the newest one that was built for a job like this. A pinned version that
    cannot be used leaves the choice to the newest one, with a warning.

    Args:
        pinned: the number that `penstock table use` set; None: the newest version is to be used.
        wanted: the fingerprint that the job needs.
    """
    fitting = [each for each in versions.manifests if each.fingerprint == wanted]
    newest = fitting[-1] if fitting else None
    if pinned is None:
        unread = [number for number in versions.unreadable if newest is None or number > newest.version]
        return ChosenVersion(newest, f"version {max(unread)} {_unread(versions, max(unread))}" if unread else None)
    found = versions.of(pinned)
    if found is not None and found.fingerprint == wanted:
        return ChosenVersion(found)
    if found is not None and found.fingerprint is not None:
        reason = f"was built for another job: {found.fingerprint.difference(wanted)}"
    else:
        reason = _unread(versions, pinned)
    instead = "no version" if newest is None else f"version {newest.version}"
    return ChosenVersion(newest, f"version {pinned}, which `penstock table use` set, {reason}. The job uses {instead}")


def expired(numbers: Sequence[int], newest: int, needed: Collection[int]) -> tuple[int, ...]:
    """The versions that may go, oldest first: neither among the `newest` last ones, nor needed. The last one always
    stays: the next version is numbered after it."""
    return tuple(number for number in numbers[: -max(1, newest)] if number not in needed)


def _unread(versions: PublishedVersions, number: int) -> str:
    return f"cannot be read: {versions.unreadable[number]}" if number in versions.unreadable else "does not exist"


@dataclass(frozen=True, slots=True)
class VersionPin:
    """A version to use until another one is chosen."""

    version: Positive | None
    """None: the newest one. The document is never deleted: a late delete could remove a later choice."""
    who: str = ""


@dataclass(frozen=True, slots=True)
class VersionRefusal:
    """A version of the source that did not become one of the table, and the reason."""

    source_version: str
    reason: str
    time_ms: Count
    """In epoch milliseconds."""


def pin_of(objects: ObjectStore, paths: JobPaths, table: str) -> Board[VersionPin]:
    """The version to use; the newest one is used until somebody has chosen one."""
    damage = "is damaged, it does not name the version of a table; set it with `penstock table use`"
    return Board(objects, paths.metadata("table-use", table), VersionPin, damage)


def refusal_of(objects: ObjectStore, paths: JobPaths, table: str) -> Board[VersionRefusal]:
    """The last refusal, unless a later version was accepted. It only informs."""
    damage = "is damaged, it does not say why a table was refused"
    return Board(objects, paths.metadata("table-refused", table), VersionRefusal, damage)


_WRITE = Retry(pause_s=0.2, tries=5)
_TRIES = 100


class TableRegistry:
    """Reads, publishes, pins and deletes the versions of one table. Used by any number of processes, and by one thread
    at a time in each. Every method raises RetryableError if the store fails."""

    def __init__(self, objects: ObjectStore, paths: JobPaths, table: str) -> None:
        self._objects = objects
        self._paths = paths
        self._pin = pin_of(objects, paths, table)
        self._read: dict[int, TableManifest] = {}
        self.table = table

    def versions(self) -> PublishedVersions:
        """All versions, including the numbers of those that cannot be read."""
        records, unreadable = self._records()
        return PublishedVersions(tuple(each for each in records if not each.is_fence), unreadable)

    def manifest(self, version: int) -> TableManifest:
        """One version.

        Raises:
            NotFoundError: it does not exist; names those that do.
            CorruptError: its manifest is damaged.
            IncompatibleError: a newer Penstock wrote it.
        """
        try:
            found = self._load(version)
        except NotFoundError:
            raise NotFoundError(self._no_version(version)) from None
        if found.is_fence:
            raise NotFoundError(self._no_version(version))
        return found

    def newest(self) -> TableManifest | None:
        return self.versions().newest

    def choose(self, wanted: TableFingerprint) -> ChosenVersion:
        """The version to use: the pinned one, otherwise the newest one that has the `wanted` fingerprint."""
        return choose(self.versions(), self.pinned(), wanted)

    def file_key(self, manifest: TableManifest, file: TableFile) -> str:
        return self._paths.table_file(self.table, manifest.build, file.name)

    def pieces(self, manifest: TableManifest, file: TableFile) -> Iterator[bytes | memoryview]:
        """The bytes of a file, as `ObjectStore.pieces`. Raises NotFoundError at the first piece or later."""
        return self._objects.pieces(self.file_key(manifest, file))

    def put_file(self, build: str, name: str, data: bytes) -> None:
        """Put a file of a build that is under way. Nobody sees it before its version is published. Idempotent."""
        retry(lambda: self._objects.put_if_absent(self._paths.table_file(self.table, build, name), data), _WRITE)

    def publish(self, manifest: TableManifest) -> TableManifest:
        """Publish a version whose files are all stored, under the next number, and return it with that number. It is
        durable then, and visible to everybody at once. Idempotent: a build is published once.

        Raises:
            FencedError: a later driver has the table.
        """
        return retry(lambda: self._publish(manifest), _WRITE)

    def _publish(self, manifest: TableManifest) -> TableManifest:
        for _ in range(_TRIES):
            records, unreadable = self._records()
            own = next((each for each in records if each.build == manifest.build), None)
            later = next((each for each in records if each.epoch > manifest.epoch), None)
            if later is not None:
                self._withdraw(own)
                raise FencedError(
                    f"table `{self.table}`: a driver of epoch {later.epoch} has it now, and build `{manifest.build}` "
                    f"of epoch {manifest.epoch} is not published"
                )
            if own is not None:
                return own
            number = max([0, *unreadable, *(each.version for each in records)]) + 1
            numbered = replace(manifest, version=number)
            # Whether it was this call that put it is seen when the records are read again.
            self._objects.put_if_absent(self._paths.table_version(self.table, number), numbered.encode())
        raise RetryableError(
            f"table `{self.table}`: another process published one version after another while build "
            f"`{manifest.build}` asked for a number. Make sure that only one process builds the table"
        )

    def pin(self, version: int | None, who: str = "") -> None:
        """Use this version from now on, or the newest one if it is None. Durable when it returns. Raises NotFoundError
        if there is no such version, or files of it are gone; names the existing versions."""
        if version is not None:
            self._check_files(self.manifest(version))
        retry(lambda: self._put_pin(VersionPin(version, who)), _WRITE)
        if version is None:
            return
        # It may have expired between the look and the pin, which nobody saw then.
        try:
            self._objects.get(self._paths.table_version(self.table, version))
        except NotFoundError:
            retry(lambda: self._put_pin(VersionPin(None, who)), _WRITE)
            raise NotFoundError(self._no_version(version)) from None

    def _put_pin(self, pin: VersionPin) -> None:
        if not self._pin.put(pin):
            raise RetryableError(f"`{self._pin.key}` was changed by another process at the same time; try again")

    def pinned(self) -> int | None:
        """The version that `pin` set; None: the newest one is used."""
        found = self._pin.get()
        return None if found is None else found.version

    def retain(self, newest: int, in_use: Iterable[int], check_owner: Callable[[], None]) -> tuple[int, ...]:
        """Delete old versions, and return them. The newest ones, those in use and the pinned one are kept. So is
        everything that a later driver finds when it takes the job over: it may use an old version.

        Args:
            newest: `tables.versions.retained`.
            in_use: versions that a container reads or loads, or that a batch may still name.
            check_owner: raises FencedError if another driver has the job.

        Raises:
            FencedError: another driver has the job.
        """
        records, unreadable = self._records()
        versions = [each.version for each in records if not each.is_fence]
        pinned = self.pinned()
        needed = {*in_use, *(() if pinned is None else (pinned,))}
        gone = [number for number in expired(versions, newest, needed) if self._delete(records, number, check_owner)]
        last = max([0, *unreadable, *(each.version for each in records)])
        for fence in (each for each in records if each.is_fence and each.version < last):
            if any(each.version > fence.version and each.epoch >= fence.epoch for each in records):
                self._objects.delete(self._paths.table_version(self.table, fence.version))
        return tuple(gone)

    def garbage(self, epoch: int, under_way: Collection[str] = ()) -> tuple[str, ...]:
        """The keys of files that no version names, that belong to no build under way, and to no later epoch than this
        driver's.

        Args:
            under_way: the builds that this driver may still publish.
        """
        records, unreadable = self._records()
        if unreadable:  # what they name is not known
            return ()
        named = {self.file_key(each, file) for each in records for file in each.files}
        folder = f"{self._paths.table_builds(self.table)}/"
        return tuple(
            key
            for key in self._objects.list(folder)
            if key not in named
            and (build := key.removeprefix(folder).partition("/")[0]) not in under_way
            and build_epoch(build) <= epoch
        )

    def collect(self, epoch: int, under_way: Collection[str] = ()) -> int:
        """Delete the files of failed builds of this driver and those before it. Returns the number of files.

        Args:
            under_way: the builds that this driver may still publish.

        Raises:
            FencedError: a later driver has the table.
        """
        found = self.garbage(epoch, under_way)
        if any(build_epoch(key.split("/")[-2]) < epoch for key in found):
            self._fence(epoch)
            found = self.garbage(epoch, under_way)  # a driver before may have published until the fence stood
        for key in found:
            self._objects.delete(key)
        return len(found)

    def _fence(self, epoch: int) -> None:
        """Make sure that no driver of an earlier epoch publishes any more."""
        records, _ = self._records()
        if not records or records[-1].epoch < epoch:
            self.publish(TableManifest(self.table, 0, epoch, build_name(epoch, "fence"), "", "", 0, 0, None))
        elif records[-1].epoch > epoch:
            raise FencedError(f"table `{self.table}`: another driver, of epoch {records[-1].epoch}, has it now")

    def _delete(self, records: tuple[TableManifest, ...], number: int, check_owner: Callable[[], None]) -> bool:
        """Delete one version: its manifest first, which makes it invisible. False if it was pinned meanwhile.

        If the job is still this driver's after that, no later driver has seen the version, and its files may go at any
        time.
        """
        check_owner()
        key = self._paths.table_version(self.table, number)
        manifest = next(each for each in records if each.version == number)
        self._objects.delete_durably(key)
        try:
            check_owner()
        except PenstockError:
            if self._missing(manifest) is None:
                self._objects.put_if_absent(key, manifest.encode())
            raise
        if self.pinned() == number:
            self._objects.put_if_absent(key, manifest.encode())
            return False
        self._read.pop(number, None)
        for file in manifest.files:
            self._objects.delete(self.file_key(manifest, file))
        return True

    def _records(self) -> tuple[tuple[TableManifest, ...], dict[int, str]]:
        """All records below the folder of versions, ascending, fences included; and the reasons why others cannot be
        read."""
        listed = (
            self._paths.table_version_of(key) for key in self._objects.list(self._paths.table_versions(self.table))
        )
        numbers = [number for number in listed if number is not None]
        records, unreadable = [], {}
        for number in numbers:
            try:
                records.append(self._load(number))
            except NotFoundError:  # it has expired meanwhile
                continue
            except (CorruptError, IncompatibleError) as error:
                unreadable[number] = str(error)
        self._read = {number: found for number, found in self._read.items() if number in set(numbers)}
        return tuple(records), unreadable

    def _load(self, version: int) -> TableManifest:
        found = self._read.get(version)
        if found is None:
            key = self._paths.table_version(self.table, version)
            found = TableManifest.decode(self._objects.get(key), key)
            if (found.table, found.version) != (self.table, version):
                raise CorruptError(f"`{key}` is damaged: it says that it is version {found.version} of `{found.table}`")
            self._read[version] = found
        return found

    def _withdraw(self, own: TableManifest | None) -> None:
        """Delete a version of this build whose files are gone: its number became free after a fence, long after the
        files were collected."""
        if own is not None and self._missing(own) is not None:
            self._objects.delete_durably(self._paths.table_version(self.table, own.version))

    def _check_files(self, manifest: TableManifest) -> None:
        missing = self._missing(manifest)
        if missing is not None:
            raise NotFoundError(
                f"version {manifest.version} of table `{self.table}` is not whole: its file "
                f"`{self.file_key(manifest, missing)}` is missing or has another size. Choose another version"
            )

    def _missing(self, manifest: TableManifest) -> TableFile | None:
        """A file that is missing or has another size."""
        sizes = self._objects.sizes(self._paths.table_build(self.table, manifest.build))
        return next(
            (each for each in manifest.files if sizes.get(self.file_key(manifest, each)) != each.size_bytes), None
        )

    def _no_version(self, version: int) -> str:
        there = ", ".join(map(str, self.versions().numbers))
        return f"table `{self.table}` has no version {version}; " + (f"it has {there}" if there else "it has none yet")


def build_name(epoch: int, token: str) -> str:
    """The folder of a build. `token` makes it unique."""
    return f"{epoch}-{token}"


def build_epoch(build: str) -> int:
    """The epoch in the name of a build; 0 if it has none."""
    digits = build.partition("-")[0]
    return int(digits) if digits.isdecimal() and len(digits) < 20 else 0
