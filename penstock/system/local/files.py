"""The local system on disk: the place of streams, publishing one as a whole, and the tables of a partition's file.

```
<root>/<stream>/stream.json         format, partition count, uid; exists only when everything else does
<root>/<stream>/<partition>.db      SQLite, WAL: message, head, peak, fence; mark, once something was appended;
                                    compacted, once it was; retention, if it has a limit;
                                    ended, once a user declared so, with the next offset at that time;
                                    progress, once a writer marked how far it has published;
                                    header, once a message had headers;
                                    owner, in partition 0 of a stream that has one
<root>/.deleting-<random>/          a stream that was deleted, until its files are removed
<root>/.creating-<random>/          a stream being built; renamed to <root>/<stream> when it is complete and synced
```

`head` is one row: the name of this partition, and the next offset, which only ever grows: no number is used twice even
when old messages are gone. `peak` has a row for each append that raised the largest timestamp so far (that timestamp,
the append's first offset): enough to find an offset by time without an index on every message.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.base.documents import Positive, decode_format, unread_format
from penstock.base.files import PRIVATE_FOLDER, explain
from penstock.base.wording import counted
from penstock.errors import ConfigError, CorruptError, IncompatibleError, NotFoundError, RetryableError
from penstock.host.posix import other_spelling, sync, sync_path
from penstock.system.base import check_stream_name, is_stream_name
from penstock.system.local.partition import write_retention
from penstock.system.local.sqlite import connect, transaction, translate

FORMAT = 1
_DELETING = ".deleting-"
_MOST_PARTITIONS = 10_000

# `message.timestamp` has no type: with one, SQLite would turn the text '1' into a number before the check sees it.
_SCHEMA = """
CREATE TABLE message (
    offset INTEGER PRIMARY KEY, timestamp NOT NULL, key BLOB, value BLOB,
    CHECK (typeof(timestamp) = 'integer'), CHECK (typeof(key) IN ('blob', 'null')),
    CHECK (typeof(value) IN ('blob', 'null')));
CREATE TABLE head (format INTEGER NOT NULL, uid TEXT NOT NULL, partition INTEGER NOT NULL, upcoming INTEGER NOT NULL);
CREATE TABLE peak (timestamp INTEGER PRIMARY KEY, offset INTEGER NOT NULL);
CREATE TABLE fence (writer TEXT PRIMARY KEY, epoch INTEGER NOT NULL)
"""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """The content of `stream.json`: the partition count, and a uid minted once, which tells a stream from its
    namesake."""

    partitions: Positive
    uid: str


FileVersion: TypeAlias = tuple[int, int, int, int]
"""Device, inode, time of the last change, and size."""


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """The folder of one local system: builds every path, and publishes and lists streams."""

    system: str
    root: str
    busy_timeout_ms: int

    def partition_path(self, ssp: SystemStreamPartition) -> str:
        """The file of a partition.

        Raises:
            ConfigError: the partition belongs to another system, or its stream's name is not allowed.
        """
        if ssp.system != self.system:
            raise ConfigError(f"`{ssp}` is not a partition of the system `{self.system}`")
        check_stream_name(ssp.stream)
        return os.path.join(self.root, ssp.stream, f"{ssp.partition}.db")

    def version(self, stream: str) -> FileVersion | None:
        """Distinguishes the `stream.json` of a stream from those of other streams of its name. None: there is none."""
        try:
            found = os.stat(os.path.join(self.root, stream, "stream.json"))
        except (OSError, ValueError):  # what no path may have
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size

    def describe(self, stream: str) -> StreamInfo:
        """The content of `stream.json`.

        Raises:
            NotFoundError: there is no such stream; says how to create it.
            ConfigError: the file system takes the name for that of another stream.
            CorruptError, IncompatibleError: the file is damaged, or of a newer format.
        """
        check_stream_name(stream)
        path = os.path.join(self.root, stream, "stream.json")
        try:
            self._check_spelling(stream)
            with open(path, "rb") as file:
                content = file.read()
        except (FileNotFoundError, NotADirectoryError):
            raise self._not_found(stream) from None
        except OSError as error:
            raise explain(error, f"`{path}` cannot be read", f"systems.{self.system}.path") from error
        return _parse(content, path)

    def open(self, path: str) -> sqlite3.Connection:
        """Open the partition at a path made by `partition_path`, checking that the file belongs there.

        Raises:
            NotFoundError: there is no such stream, or it has no such partition.
            CorruptError, IncompatibleError: the file belongs elsewhere, or is of a newer format.
            sqlite3.Error: to be translated by the caller.
        """
        stream, file = os.path.split(os.path.relpath(path, self.root))
        partition = int(file.removesuffix(".db"))
        info = self.describe(stream)
        if not 0 <= partition < info.partitions:
            raise NotFoundError(
                f"the stream `{self.system}.{stream}` has the partitions 0 to {info.partitions - 1}, not {partition}"
            )
        connection = connect(path, self.busy_timeout_ms)
        try:
            _verify(connection, path, info.uid, partition)
        except BaseException:
            connection.close()
            raise
        return connection

    def create(self, stream: str, partitions: int, retention: StreamRetention) -> bool:
        """Publish an empty stream in one step; True if this call made it. The retention applies only to a stream that
        it makes.

        It is built aside, synced, and renamed into place, which fails if something is there: of several processes
        that create it at once one does, and nobody ever sees a part of it.

        Raises:
            IncompatibleError: it exists with another partition count.
            ConfigError: the name or the count is not allowed, or the root cannot be written.
            CorruptError: the stream's place is taken by something that is not a stream.
            RetryableError: no space was left, or the disk failed.
        """
        check_stream_name(stream)
        if not 1 <= partitions <= _MOST_PARTITIONS:
            raise ConfigError(f"a stream has 1 to {_MOST_PARTITIONS} partitions; {partitions} were asked for")
        target = os.path.join(self.root, stream)
        if not os.path.lexists(target):
            building = os.path.join(self.root, f".creating-{uuid.uuid4().hex}")
            try:
                _make_folder(self.root)
                # Whoever can read the files that SQLite keeps beside a partition's can hold up all who write it.
                os.mkdir(building, PRIVATE_FOLDER)
                self._build(building, partitions, retention)
                if _rename_if_absent(building, target):
                    sync_path(self.root)
                    return True
            except OSError as error:
                kind = ConfigError if isinstance(error, PermissionError | NotADirectoryError) else RetryableError
                raise kind(f"the stream `{self.system}.{stream}` could not be created: {error}") from error
            finally:
                shutil.rmtree(building, ignore_errors=True)
        found = self._describe_existing(stream, target)
        if found.partitions != partitions:
            raise IncompatibleError(
                f"the stream `{self.system}.{stream}` exists with {counted(found.partitions, 'partition')}; "
                f"{partitions} were "
                "asked for. A partition count cannot be changed: create a stream of another name"
            )
        return False

    def open_to_readers(self, stream: str) -> str | None:
        """The mode of a stream's folder if somebody can enter it who cannot write; None if not."""
        try:
            mode = os.stat(os.path.join(self.root, stream)).st_mode & 0o777
        except OSError:
            return None
        return f"{mode:o}" if mode & 0o007 or (mode & 0o050 and not mode & 0o020) else None

    def streams(self) -> list[str]:
        try:
            found = os.listdir(self.root)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise ConfigError(f"`{self.root}` cannot be listed: {error}") from error
        return sorted(
            name
            for name in found
            if is_stream_name(name) and os.path.isfile(os.path.join(self.root, name, "stream.json"))
        )

    def delete(self, stream: str) -> None:
        """Delete a stream: it is renamed, which is one step, and then removed. The remains of an interrupted earlier
        call are removed as well.

        Raises:
            NotFoundError: there is no such stream.
            ConfigError: the file system takes the name for that of another stream.
            RetryableError: the disk failed.
        """
        check_stream_name(stream)
        try:
            self._check_spelling(stream)
            os.rename(os.path.join(self.root, stream), os.path.join(self.root, f"{_DELETING}{uuid.uuid4().hex}"))
            sync_path(self.root)
            for name in os.listdir(self.root):
                if name.startswith(_DELETING):
                    shutil.rmtree(os.path.join(self.root, name), ignore_errors=True)
        except (FileNotFoundError, NotADirectoryError):
            raise self._not_found(stream) from None
        except OSError as error:
            raise RetryableError(f"the stream `{self.system}.{stream}` could not be deleted: {error}") from error

    def _check_spelling(self, stream: str) -> None:
        other = other_spelling(os.path.join(self.root, stream))
        if other is not None:
            raise ConfigError(
                f"the stream `{self.system}.{stream}` cannot be told from `{self.system}.{other}`: the file system of "
                f"`{self.root}` takes both names for one. Choose a name that differs in more than case"
            )

    def _build(self, folder: str, partitions: int, retention: StreamRetention) -> None:
        info = StreamInfo(partitions, uuid.uuid4().hex)
        for partition in range(partitions):
            path = os.path.join(folder, f"{partition}.db")
            try:
                connection = connect(path, self.busy_timeout_ms, create=True)
                try:
                    _make_partition(connection, info.uid, partition, retention)
                finally:
                    connection.close()
                sync_path(path)
            except sqlite3.Error as error:
                raise translate(error, path, self.busy_timeout_ms) from error
        with open(os.path.join(folder, "stream.json"), "wb") as file:
            content = {"format": FORMAT, "partitions": info.partitions, "uid": info.uid}
            file.write(json.dumps(content).encode() + b"\n")
            file.flush()
            sync(file.fileno())
        sync_path(folder)

    def _describe_existing(self, stream: str, target: str) -> StreamInfo:
        try:
            return self.describe(stream)
        except NotFoundError:
            raise CorruptError(f"`{target}` is there but holds no `stream.json`: move it away and try again") from None

    def _not_found(self, stream: str) -> NotFoundError:
        create = f"create it with `penstock stream create {self.system}.{stream} --partitions N`"
        if not os.path.isdir(self.root):
            return NotFoundError(
                f"the stream `{self.system}.{stream}` does not exist, nor does the folder of its system, "
                f"`{self.root}`; {create}"
            )
        return NotFoundError(f"the stream `{self.system}.{stream}` does not exist in `{self.root}`; {create}")


def _make_partition(connection: sqlite3.Connection, uid: str, partition: int, retention: StreamRetention) -> None:
    connection.execute("PRAGMA synchronous=OFF")  # nothing is visible yet; the finished file is synced as a whole
    with transaction(connection):
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        connection.execute("INSERT INTO head VALUES (?, ?, ?, 0)", (FORMAT, uid, partition))
        write_retention(connection, retention)
    connection.execute("PRAGMA journal_mode=WAL")


def _verify(connection: sqlite3.Connection, path: str, uid: str, partition: int) -> None:
    found = connection.execute("SELECT format, uid, partition FROM head").fetchall()
    if len(found) == 1 and found[0][0] != FORMAT:
        raise unread_format(f"`{path}`", found[0][0], FORMAT)
    if len(found) != 1 or found[0][1:] != (uid, partition):
        raise CorruptError(
            f"`{path}` is not the partition its name says: its stream has uid {uid}, the file says (format, uid, "
            f"partition) {found}; was it copied here from another stream?"
        )


@lru_cache(maxsize=64)
def _parse(content: bytes, path: str) -> StreamInfo:
    what = f"`{path}` is damaged, it is not the description of a stream"
    info = decode_format(StreamInfo, content, what, f"`{path}`", FORMAT)
    if info.partitions > _MOST_PARTITIONS:
        raise CorruptError(f"`{path}` is damaged: it claims {info.partitions} partitions")
    return info


def _rename_if_absent(source: str, target: str) -> bool:
    try:
        os.rename(source, target)  # a folder that is not empty is never replaced
    except OSError:
        if os.path.lexists(target):
            return False
        raise
    return True


def _make_folder(path: str) -> None:
    if not os.path.isdir(path):
        parent = os.path.dirname(path)
        _make_folder(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        sync_path(parent)
