"""Folders of files, on any file system that Arrow knows; and the files of others in them.

Once Penstock has written to a folder, its readers get what the manifests name: files of others would be hidden. So
Penstock writes to no folder that has some.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from penstock import errors
from penstock.base.files import explain
from penstock.base.wording import counted, utc_text
from penstock.system.files.listing import FoundFile, Listing
from penstock.system.files.manifests import MANIFESTS, is_written
from penstock.system.rows.reader import leads_out, opened_inside, readable, refused

Links: TypeAlias = Literal["inside", "follow"]
"""The links of a folder that are followed: those to other places below it, or all."""
_ADVICE = (
    ": any writer of the folder could show any file of this machine. If that is wanted, set `systems.<name>.links` to "
    "`follow`; otherwise remove the link"
)
_PACKED_DAMAGE = re.compile(r"compressed stream|(inflate|decompress) failed")
_NULL = "__HIVE_DEFAULT_PARTITION__"


class Folder:
    """A folder, by its URL or path. Nothing is opened or looked for when it is made."""

    def __init__(self, url: str, links: Links = "inside") -> None:
        self.url = url
        self._confined = links == "inside"
        self._place: tuple[fs.FileSystem, str] | None = None

    def exists(self) -> bool:
        """An object store has no empty folders."""
        with _explained(f"`{self.url}` cannot be looked for"):
            system, path = self._open()
            return bool(system.get_file_info(path).type == fs.FileType.Directory)

    def is_gone(self) -> bool:
        """True if the folder was deleted, or its disk is away. False in an object store, which has no empty folders."""
        with _explained(f"`{self.url}` cannot be looked for"):
            system, path = self._open()
            return isinstance(system, fs.LocalFileSystem) and system.get_file_info(path).type == fs.FileType.NotFound

    def holds(self, name: str) -> bool:
        with _explained(f"`{self.url}` cannot be looked at"):
            system, path = self._open()
            return bool(system.get_file_info(f"{path.rstrip('/')}/{name}").type == fs.FileType.Directory)

    def create(self) -> None:
        with _explained(f"`{self.url}` cannot be made"):
            system, path = self._open()
            system.create_dir(path, recursive=True)

    def folders(self) -> list[str]:
        _, path = self._open()
        return sorted(info.base_name for info in self._infos(path, recursive=False) if _is_folder(info))

    def files(self, *, with_empty: bool = False) -> list[FoundFile]:
        """All data files below it. Names that begin with `_` or `.` are ignored, as in Spark, and so is an empty file,
        which is not complete yet, unless it is asked for."""
        _, base = self._open()
        found = []
        for info in self._below():
            path = info.path[len(base) :].lstrip("/")
            if info.type == fs.FileType.File and (info.size or with_empty) and _is_data(path):
                self._check_inside(info.path)
                found.append(FoundFile(path, info.size, info.mtime_ns // 1_000_000))
        return found

    def stat(self, path: str) -> FoundFile:
        """Raises NotFoundError if the file does not exist."""
        with _explained(f"`{self.url}` cannot be looked at"):
            system, base = self._open()
            info = system.get_file_info(f"{base.rstrip('/')}/{path}")
        if info.type != fs.FileType.File:
            raise errors.NotFoundError(f"`{self.url.rstrip('/')}/{path}` was committed and is gone: put it back")
        return FoundFile(path, info.size, info.mtime_ns // 1_000_000)

    @contextmanager
    def reading(self, file: FoundFile) -> Iterator[tuple[fs.FileSystem, str]]:
        """The file system and the path of a file that has not changed since it was found. Errors of the block are
        raised as errors that name the file.

        Raises:
            NotFoundError: the file is gone.
            CorruptError: it has changed since, or its format is broken.
        """
        name = f"{self.url.rstrip('/')}/{file.path}"
        with _explained(f"`{name}` cannot be read"), self._opened(file) as (system, path):
            info = system.get_file_info(path)
            if info.type == fs.FileType.NotFound:
                raise errors.NotFoundError(
                    f"`{name}` is gone. It is listed, and was not read to its end: put it back as it was"
                )
            if info.type != fs.FileType.File:
                raise errors.CorruptError(
                    f"`{name}` was a file when it was listed, and is none now: put it back as it was"
                )
            if (info.size, info.mtime_ns // 1_000_000) != (file.size_bytes, file.modified_ms):
                raise errors.CorruptError(
                    f"`{name}` was changed after it was listed: {_difference(file, info)}. A file must be complete "
                    "when it appears in the folder: write it under a name that begins with `_` or `.`, then rename it. "
                    "Put the earlier one back, or continue behind it with a startpoint"
                )
            try:
                with readable(f"`{name}` cannot be read"):
                    yield system, path
            except OSError as error:
                if error.errno is None and _PACKED_DAMAGE.search(str(error)):
                    raise errors.CorruptError(
                        f"`{name}` cannot be read: what is packed in it is cut off or damaged, or other bytes follow "
                        f"({error}). Put a whole file in its place under another name, and continue behind this one "
                        "with a startpoint"
                    ) from error
                if error.errno is None and isinstance(system, fs.LocalFileSystem):  # there is no network that failed
                    raise errors.CorruptError(f"`{name}` cannot be read: {error}") from error
                raise

    def _below(self) -> list[fs.FileInfo]:
        """All files and folders below it. Links to folders are followed, if they lead to others below it, but for one
        that leads back to a folder which contains it: Arrow itself follows such a link again and again, until the
        system refuses the path."""
        system, path = self._open()
        if not isinstance(system, fs.LocalFileSystem):
            return self._infos(path, recursive=True)
        found: list[fs.FileInfo] = []
        ahead: list[tuple[str, frozenset[tuple[int, int]]]] = [(path, frozenset())]
        while ahead:
            folder, above = ahead.pop()
            own = self._identity(folder)
            if own is None or own in above:
                continue
            inside = self._infos(folder, recursive=False)
            found += inside
            folders = [each.path for each in inside if _is_folder(each) or _is_partition(each)]
            for each in folders:
                self._check_inside(each)
            ahead += [(each, above | {own}) for each in folders]
        return found

    def _check_inside(self, path: str) -> None:
        """Raises SystemRefusedError if a link of this machine leads out of the folder."""
        system, base = self._open()
        if self._confined and isinstance(system, fs.LocalFileSystem) and os.path.islink(path):
            outside = leads_out(base, path)
            if outside is not None:
                raise refused(path, outside, _ADVICE)

    @contextmanager
    def _opened(self, file: FoundFile) -> Iterator[tuple[fs.FileSystem, str]]:
        """The file system, and a path by which it opens the file; the file need not exist."""
        system, base = self._open()
        path = f"{base.rstrip('/')}/{file.path}"
        if not (self._confined and isinstance(system, fs.LocalFileSystem) and os.path.lexists(path)):
            yield system, path
            return
        with opened_inside(base, path, _ADVICE) as own:
            yield system, own

    def _identity(self, folder: str) -> tuple[int, int] | None:
        """An identity of a folder of this machine, the same by every path; None if it is gone."""
        with _explained(f"`{self.url}` cannot be listed"):
            try:
                found = os.stat(folder)
            except FileNotFoundError:
                return None
            return found.st_dev, found.st_ino

    def _infos(self, path: str, *, recursive: bool) -> list[fs.FileInfo]:
        with _explained(f"`{self.url}` cannot be listed"):
            system, _ = self._open()
            found: list[fs.FileInfo] = system.get_file_info(
                fs.FileSelector(path, recursive=recursive, allow_not_found=True)
            )
            return found

    def _open(self) -> tuple[fs.FileSystem, str]:
        if self._place is None:
            try:
                given = self.url if "://" in self.url else str(Path(self.url).absolute())
                self._place = fs.FileSystem.from_uri(given)
            except (pa.ArrowException, ValueError, TypeError) as error:
                raise errors.ConfigError(f"`{self.url}` is not the URL of a folder: {error}") from error
        return self._place


def partition_values(path: str) -> dict[str, str | None]:
    """The values of the partition columns in a path: of its folders `name=value`.

    Example:
        >>> partition_values("year=2024/place=New%20York/part-0.parquet")
        {'year': '2024', 'place': 'New York'}
    """
    found: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, equals, value = folder.partition("=")
        if equals and name:
            found[unquote(name)] = None if value == _NULL else unquote(value)
    return found


def _difference(listed: FoundFile, found: fs.FileInfo) -> str:
    """In words."""
    if found.size != listed.size_bytes:
        return f"it had {listed.size_bytes:,} bytes, and has {found.size:,}"
    before, after = utc_text(listed.modified_ms), utc_text(found.mtime_ns // 1_000_000)
    return f"it has its {found.size:,} bytes still, and was last modified at {after}, not at {before}"


def _is_data(path: str) -> bool:
    """Spark ignores names that begin with `_` or `.`; a folder of a partition has a `=`."""
    *folders, name = path.split("/")
    if name.startswith(("_", ".")):
        return False
    return not any(each.startswith(".") or (each.startswith("_") and "=" not in each) for each in folders)


def _is_folder(info: fs.FileInfo) -> bool:
    return bool(info.type == fs.FileType.Directory) and not info.base_name.startswith(("_", "."))


def _is_partition(info: fs.FileInfo) -> bool:
    return bool(info.type == fs.FileType.Directory) and info.base_name.startswith("_") and "=" in info.base_name


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise errors.NotFoundError(f"{what}: {error}") from error
    except PermissionError as error:
        raise errors.SystemRefusedError(f"{what}: {error}. Let this user read there") from error
    except OSError as error:
        if error.errno is None:  # of a service behind the network
            raise errors.RetryableError(f"{what}: {error}") from error
        raise explain(error, what, "systems.<name>.folder") from error


_SHOWN = 5


def check_no_others(title: str, folder: Folder, listing: Listing) -> None:
    """Raise ConfigError if a folder without manifests has data files, or had some when it was listed: others write it.

    Args:
        title: the stream's name.
        folder: its folder.
        listing: its listing, which was read.
    """
    found = [file.path for file in folder.files(with_empty=True)]
    listed = listing.of_others()
    if not found and not listed:
        return
    what = "holds" if found else "held"
    paths = found or listed
    raise errors.ConfigError(
        f"Penstock cannot write to `{title}`: its folder `{folder.url}` {what} {counted(len(paths), 'file')} that "
        f"Penstock has not written ({_shown(paths)}), and is read as it is. Nothing was written. Name another stream, "
        "whose folder is empty or does not exist; `penstock stream replay --to STREAM` puts dead letters there"
    )


def check_none_ignored(title: str, folder: Folder) -> None:
    """Raise IncompatibleError if a folder that Penstock writes has files of others as well.

    Args:
        title: the stream's name.
        folder: its folder.
    """
    others = [file.path for file in folder.files(with_empty=True) if not is_written(file.path)]
    if others:
        raise errors.IncompatibleError(
            f"`{title}` is a folder that Penstock writes, whose readers get what its manifests name, and "
            f"`{folder.url}` holds {counted(len(others), 'file')} of others as well ({_shown(others)}), which nobody "
            "would get. Move these to another folder, and read it there. Or, if you need nothing of what "
            f"Penstock wrote there, delete `{MANIFESTS}` and the files `part-*` that it names"
        )


def check_listed(title: str, folder: Folder, listing: Listing) -> None:
    """Raise IncompatibleError if others wrote a folder when it was listed, and Penstock writes it now.

    Args:
        title: the stream's name.
        folder: its folder.
        listing: its listing, which was read.
    """
    listed = [own[-1].path for own in listing.files if own and not is_written(own[-1].path)]
    if listed:
        check_none_ignored(title, folder)
        raise errors.IncompatibleError(
            f"`{title}` was listed with files that Penstock has not written ({_shown(listed)}), and Penstock writes "
            f"its folder `{folder.url}` now. Name another `systems.{title.partition('.')[0]}.listing` to read what "
            "Penstock writes there"
        )


def _shown(paths: Sequence[str]) -> str:
    text = ", ".join(f"`{path}`" for path in paths[:_SHOWN])
    return text if len(paths) <= _SHOWN else f"{text}, ..."
