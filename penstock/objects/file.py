"""The object store for `file:///`: one file an object, atomic and synced."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.base.files import PRIVATE_FILE, PRIVATE_FOLDER, chosen_mode, explain, open_lock
from penstock.errors import ConfigError, NotFoundError, RetryableError
from penstock.host.posix import other_spelling, sync, sync_path
from penstock.objects.store import RESERVED_PREFIX, ObjectStore, check_key, check_prefix

_TEMPORARY = RESERVED_PREFIX + "tmp-"
_LOCK = RESERVED_PREFIX + "lock"
_TRIES = 16
_LOCK_POLL_S = 0.005
_PIECE_BYTES = 192 << 10
"""Small enough for one buffer that stays in the processor's cache: fresh memory for whole objects can cost more than
reading, hashing and writing them."""


class FileObjectStore(ObjectStore):
    """Objects as files below `root`, for one host or a file system shared by several.

    A put writes a temporary file in the object's folder, syncs it, links it to its name (which fails if the name
    is taken) and syncs the folder, and before it the folders it made. A conditional replace compares and renames
    under an exclusive `flock` on a file of the key's first folder, held for microseconds; nothing else waits for that
    lock but `delete`, and only users who may write can take it. Every temporary file is locked by its writer while the
    writer lives, so that a listing removes those of dead processes and only those. The file system must have hard
    links.

    The root is made by the first put, not by opening the store.

    Only its user can read the objects of a store, unless it is for others: then the user's umask decides. The root
    itself is always made with that umask, because jobs of several users may have folders in it.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, lock_timeout_s: float = 10.0, is_for_others: bool = False
    ) -> None:
        self._is_for_others = is_for_others
        self.root = Path(os.path.abspath(os.fspath(root)))
        self._lock_timeout_s = lock_timeout_s
        self._durable_folders: set[Path] = set()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._publish(self._path(key), data, _link)

    def get(self, key: str) -> bytes:
        path = self._path(key)
        with _explained("read", path), self._found(key):
            return path.read_bytes()

    def pieces(self, key: str) -> Iterator[bytes | memoryview]:
        path = self._path(key)
        buffer = memoryview(bytearray(_PIECE_BYTES))
        with _explained("read", path), self._found(key):
            file = path.open("rb", buffering=0)
        with file:
            while True:
                with _explained("read", path):
                    size = file.readinto(buffer)
                if not size:
                    return
                yield buffer[:size]

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        data = self.get(key)
        return data, _tag(data)

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        if tag is None:
            return self.put_if_absent(key, data)
        path = self._path(key)
        if self._tag_now(key) != tag:
            return False

        def replace(temporary: Path, target: Path) -> bool:
            with self._locked(key):
                if self._tag_now(key) != tag:
                    return False
                os.rename(temporary, target)
                return True

        return self._publish(path, data, replace)

    def folders(self) -> list[str]:
        with _explained("list", self.root):
            try:
                with os.scandir(self.root) as entries:
                    return sorted(entry.name for entry in entries if entry.is_dir())
            except FileNotFoundError:
                return []

    def list(self, prefix: str, after: str | None = None) -> list[str]:
        base = self.root / check_prefix(prefix)
        keys: list[str] = []
        with _explained("list", base):
            for folder, _, names in os.walk(base, onerror=_raise_unless_gone):
                above = Path(folder).relative_to(self.root).as_posix()
                for name in names:
                    if name.startswith(_TEMPORARY):
                        _remove_if_abandoned(Path(folder, name))
                    elif not name.startswith(RESERVED_PREFIX):
                        keys.append(name if above == "." else f"{above}/{name}")
        return sorted(key for key in keys if after is None or key > after)

    def sizes(self, prefix: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for key in self.list(prefix):
            path = self._path(key)
            with _explained("look at", path), suppress(FileNotFoundError):
                found[key] = path.stat().st_size
        return found

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _explained("delete", path):
            if not path.is_file():
                return
            # Under the lock, so that a replace that has just compared does not bring the object back.
            with suppress(FileNotFoundError), self._locked(key):
                path.unlink()

    def delete_durably(self, key: str) -> None:
        """Remove the object and sync its folder, even if it is gone: its remover may not have synced it."""
        self.delete(key)
        path = self._path(key)
        with _explained("delete", path), suppress(FileNotFoundError, NotADirectoryError):
            sync_path(path.parent)

    def remove_empty_folders(self, prefix: str) -> None:
        base = self.root / check_key(prefix)
        for folder, _, _ in os.walk(base, topdown=False):
            with suppress(OSError):  # it is not empty, or gone
                _remove_lock(Path(folder, _LOCK))
                os.rmdir(folder)

    def close(self) -> None:
        self._durable_folders.clear()

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    @contextmanager
    def _found(self, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise NotFoundError(f"there is no object `{key}` in {self.root}") from error

    def _tag_now(self, key: str) -> str | None:
        try:
            return _tag(self.get(key))
        except NotFoundError:
            return None

    def _publish(self, target: Path, data: bytes, step: Callable[[Path, Path], bool]) -> bool:
        """Write and sync a temporary file, let `step` give it its name, sync the folder."""
        with _explained("write", target):
            for _ in range(_TRIES):
                try:
                    self._make_durable_folder(target.parent)
                    with _temporary_file(target.parent, data, is_for_others=self._is_for_others) as temporary:
                        done = step(temporary, target)
                    # Needed even if the name was taken: its owner may have died, or failed, before syncing the folder.
                    sync_path(target.parent)
                except FileNotFoundError:
                    # Somebody removed the folder, or took our file for a leftover before it was locked.
                    self._durable_folders.clear()
                else:
                    return done
        raise RetryableError(f"could not write {target}: its folder was removed {_TRIES} times while writing")

    def _make_durable_folder(self, folder: Path) -> None:
        """Make the folder and its missing parents, and sync every folder on the way once per process.

        Existing folders, too: the process that made them a moment ago may not have synced them yet.
        """
        if folder in self._durable_folders:
            return
        above_root = [path for path in (self.root, *self.root.parents) if not path.exists()]
        inside = [folder, *folder.parents]
        inside = inside[: inside.index(self.root)]
        for path in [*reversed(above_root), *reversed(inside)]:
            self._make_folder(path, is_inside=path in inside)
            if path in inside and (other := other_spelling(path)) is not None:
                raise ConfigError(
                    f"the folder {path} cannot be told from `{other}`: its file system takes both names for one. "
                    "Choose a name for the job or store that differs in more than case, or another `job.root`"
                )
            sync_path(path.parent)
        if not above_root:
            with suppress(PermissionError):  # a root made for us below a folder that is not ours to read
                sync_path(self.root.parent)
        self._durable_folders.add(folder)

    def modes_of_others(self, prefix: str) -> str | None:
        try:
            mode = (self.root / prefix).stat().st_mode & 0o777
        except OSError:
            return None
        return f"{mode:o}" if mode & 0o077 else None

    def _make_folder(self, path: Path, *, is_inside: bool) -> None:
        if is_inside and not self._is_for_others:
            path.mkdir(PRIVATE_FOLDER, exist_ok=True)
            return
        try:
            path.mkdir()
        except FileExistsError:
            if not path.is_dir():
                raise
        else:
            if (mode := chosen_mode(0o777)) is not None:
                path.chmod(mode)

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Hold the lock of the key's first folder. Raises RetryableError if another process keeps it for longer than
        the timeout, and FileNotFoundError if the folder is gone."""
        above, slash, _ = key.partition("/")
        path = (self.root / above if slash else self.root) / _LOCK
        deadline = time.monotonic() + self._lock_timeout_s
        while (descriptor := _locked_file(path, is_for_others=self._is_for_others)) is None:
            if time.monotonic() >= deadline:
                raise RetryableError(
                    f"{path} is locked by another process for more than {self._lock_timeout_s:g} s, which takes "
                    "microseconds unless that process is stopped: `lslocks` or `lsof` names it; continue or kill it"
                )
            time.sleep(_LOCK_POLL_S)
        try:
            yield
        finally:
            # Explicitly: a child forked meanwhile holds the same open file, which closing ours would not unlock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _locked_file(path: Path, *, is_for_others: bool) -> int | None:
    """A descriptor of the file that has this path now, with its lock; None if another has the lock, or the file was
    removed meanwhile."""
    descriptor = open_lock(path, for_writers=is_for_others)
    with suppress(FileNotFoundError):
        if _try_lock(descriptor) and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    os.close(descriptor)
    return None


def _remove_lock(path: Path) -> None:
    """Remove the lock of a folder that has nothing else. A process that waits for it finds out that it is gone."""
    if os.listdir(path.parent) == [path.name] and (descriptor := _locked_file(path, is_for_others=False)) is not None:
        path.unlink()
        os.close(descriptor)


def _tag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _link(temporary: Path, target: Path) -> bool:
    try:
        os.link(temporary, target)
    except FileExistsError:
        if target.is_dir():
            raise ConfigError(f"{target} is a folder of other objects and cannot be an object itself") from None
        return False
    return True


@contextmanager
def _temporary_file(folder: Path, data: bytes, *, is_for_others: bool) -> Iterator[Path]:
    """A whole, synced file in `folder`, locked while this block runs and removed (by this name) after it."""
    path = folder / f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}"
    mode = 0o666 if is_for_others else PRIVATE_FILE
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        if is_for_others and (chosen := chosen_mode(mode)) is not None:
            os.fchmod(descriptor, chosen)
        if not _try_lock(descriptor):
            raise FileNotFoundError(path)  # a sweep has it, or a reader of the folder who would keep us waiting
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        sync(descriptor)
        yield path
    finally:
        with suppress(FileNotFoundError):
            path.unlink()
        os.close(descriptor)


def _remove_if_abandoned(path: Path) -> None:
    """Remove a temporary file that no living process has locked; leave it if that is unknown."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            if _try_lock(descriptor):
                path.unlink()
        finally:
            os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


@contextmanager
def _explained(action: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise explain(error, f"could not {action} {path}", "job.root") from error
