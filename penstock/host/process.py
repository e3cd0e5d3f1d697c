"""A long-lived process of a job, beside the driver or the driver itself: its settings, Python in it, and its folders.

Ctrl-C is told apart from a KeyboardInterrupt that the application raises: only the latter is a failure of its code.
Pandas is kept out of processes in which nobody has asked for it.

`HostFolder` is a folder that processes lock, and that outlives them. A process folder is temporary: it is removed
with the process that made it, however it ends. A socket folder has the sockets of containers and of Spark's Python
workers, and nobody else can enter it: a process that is killed leaves its folder, and a container that starts later
removes it.
"""

from __future__ import annotations

import fcntl
import gc
import importlib.util
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import islice
from pathlib import Path
from subprocess import DEVNULL, PIPE
from types import FrameType, ModuleType
from typing import NoReturn, Self

import pyarrow as pa

from penstock.base.files import open_lock
from penstock.errors import Interrupted
from penstock.host.posix import SOCKET_PATH_BYTES

_FILES = 1 << 16


def ignore_signals() -> None:
    """Do nothing on SIGINT and SIGTERM. A signal to all processes of a job is meant for its driver, which still needs
    this one for the last commit.

    A handler that does nothing, because processes that the application starts would inherit SIG_IGN.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)


def allow_files() -> None:
    """Let this process open as many files as its host allows, 65,536 at most. Shells allow 1,024, which strangers on a
    port can take in a moment, before they are turned away."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS has a lower limit than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def settle() -> None:
    """Prepare for many batches, once everything is loaded."""
    # Pages of decoded messages are many objects, and no garbage yet: look through them rarely.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own gives memory back and takes it again for each packet


def mark_interrupts() -> bool:
    """Make SIGINT raise Interrupted in this process, if it would raise KeyboardInterrupt.

    Returns True if that changed anything. Only the main thread can change it.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    signal.signal(signal.SIGINT, _interrupt)
    return True


@contextmanager
def marked_interrupts() -> Iterator[None]:
    marked = mark_interrupts()
    try:
        yield
    finally:
        if marked:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Interrupted


def keep_pandas_out() -> None:
    """Let pyarrow work without pandas until something else imports it.

    pyarrow imports pandas, where it is installed, at the first array that it makes of Python objects, because one of
    them might be of pandas. It takes a third of a container's start and 50 MB. pyarrow does that once: here it looks
    while pandas cannot be found, and it looks again as soon as the application imports pandas.

    Call it before other threads run. It does nothing if pandas is imported already.
    """
    if "pandas" in sys.modules or any(isinstance(finder, _PandasWatch) for finder in sys.meta_path):
        return
    watch = _PandasWatch()
    sys.meta_path.insert(0, watch)
    pa.array([])
    watch.hides = False


class _PandasWatch(MetaPathFinder):
    """Hides pandas while pyarrow looks for it, and later tells pyarrow when it is imported."""

    def __init__(self) -> None:
        self.hides = True
        self._found = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of pandas when it is imported for the first time; None leaves a module to the other finders."""
        if fullname != "pandas" or self._found:
            return None
        if self.hides:
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
        self._found = True
        spec = importlib.util.find_spec("pandas")
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            pa.lib._pandas_api.pd  # noqa: B018, SLF001 - asking for pandas makes it look again; nothing public does

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


logger = logging.getLogger(__name__)


class HostFolder:
    """A folder that this object has locked, until `release` or the end of the process, however it ends.

    * Who uses a folder holds its lock: alone, or shared if others may use it at the same time.
    * Who removes a folder holds its lock alone. What a sweep can lock belonged to processes that have ended, so it
      removes that, and nothing that somebody uses.
    * The lock is on the folder itself and follows it when it is renamed, so that one that was made under another name
      is in use from the moment it is published. Where content comes and goes while the folder is in use, the lock is on
      the file `<name>.lock` instead.
    * Another process may remove the folder, or its lock file, before it is locked. Then it is not the one that has the
      name, and does not count.
    * Content that is removed first gets the name `<name>.leaving`. What a process leaves of it that dies meanwhile is
      no content, and is removed by the next `empty`, `remove` or sweep.
    """

    def __init__(self, path: Path, lock: int, lock_file: Path | None = None) -> None:
        self.path = path
        self._lock: int | None = lock
        self._lock_file = lock_file

    @classmethod
    def lock(cls, path: Path, *, shared: bool = False) -> Self | None:
        """The folder that has this path now; None if there is none, or others' locks forbid it. Raises OSError if the
        file system has no locks, or the folder is not ours."""
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        with suppress(FileNotFoundError):
            lock = _locked(path, _open_folder, kind)
            return None if lock is None else cls(path, lock)
        return None

    @classmethod
    def lock_beside(cls, path: Path) -> Self | None:
        """The folder, which need not exist, locked by `<name>.lock`; None if somebody has it, in this process or
        another.

        Raises:
            OSError: the file system has no locks, is full, or is not ours.
        """
        lock_file = beside(path, "lock")
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # somebody removed the folder, and the lock with it, before it was ours
                lock = _locked(lock_file, open_lock, fcntl.LOCK_EX)
                return None if lock is None else cls(path, lock, lock_file)

    def empty(self) -> None:
        """Remove the content. Raises OSError if it cannot be removed."""
        leaving = beside(self.path, "leaving")
        shutil.rmtree(leaving, ignore_errors=True)
        if self.path.exists():
            self.path.rename(leaving)
        shutil.rmtree(leaving, ignore_errors=True)

    def remove(self) -> None:
        """Remove the folder and let go of it. Files that cannot be removed stay until the next time."""
        if self._lock is None:
            return
        try:
            self.empty()
            if self._lock_file is not None:
                self._lock_file.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("`%s` could not be removed: %s", self.path, error)
        self.release()

    def release(self) -> None:
        """Let others have the folder. Idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}.{suffix}")


def _open_folder(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _locked(path: Path, opened: Callable[[Path], int], kind: int) -> int | None:
    """A descriptor of what has this path now, with its lock; None if others' locks forbid it. Raises FileNotFoundError
    if nothing has the path."""
    while True:
        descriptor = opened(path)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


_REMOVE = 'trap "" HUP INT TERM; read -r _; rm -rf -- "$0"'
"""A shell waits until its standard input ends, together with the process that holds the other end."""


@contextmanager
def process_folder(prefix: str) -> Iterator[Path]:
    """A new temporary folder. A shell removes it at the end of the block, or when this process is killed; the folder
    stays only if the shell is killed as well."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    command = ["/bin/sh", "-c", _REMOVE, str(folder)]
    with subprocess.Popen(  # noqa: S603 - no word of the command comes from outside
        command, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True
    ):
        yield folder


_PREFIX = "pstk."
_MOST_AT_ONCE = 100
"""A limit for one container: these removals take milliseconds."""
_LONGEST = SOCKET_PATH_BYTES - len("/pstk.xxxxxxxx/")
_OWN_NAME = len("123456789")
"""Room for the sockets of the container's gate, beside its own."""
SPARK_NAME = len(".00000000-0000-0000-0000-000000000000.sock")
"""The form of Spark's socket names."""


def make_socket_folder(longest_name: int = _OWN_NAME) -> Path:
    """A new folder of this process, which holds a lock on it until it ends, however it ends. `longest_name`: the most
    bytes that the name of a socket may have."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_base(longest_name)))
        try:
            if HostFolder.lock(path) is not None:  # otherwise a process that looked before the lock removes it
                return path  # the lock stays
        except OSError:
            return path  # a file system without locks: nobody removes the folder


def remove_dead_folders() -> int:
    """Remove folders of processes that have ended, at most 100 of them in a place. Returns their number."""
    return sum(_remove_dead(base) for base in {_base(_OWN_NAME), _base(SPARK_NAME)})


def _remove_dead(base: str) -> int:
    removed = 0
    with suppress(OSError), os.scandir(base) as found:
        for entry in islice((each for each in found if each.name.startswith(_PREFIX)), 10 * _MOST_AT_ONCE):
            if removed == _MOST_AT_ONCE:
                break
            with suppress(OSError):  # it is another user's
                if (dead := HostFolder.lock(Path(entry.path))) is not None:
                    dead.remove()
                    removed += 1
    return removed


def _base(longest_name: int) -> str:
    """The parent of the folders: the directory for temporary files, unless the path of a socket there would be too
    long."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) + longest_name <= _LONGEST else "/tmp"  # noqa: S108 - mkdtemp makes it safe
