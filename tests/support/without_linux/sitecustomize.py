"""Hides what only Linux has from a Python process that has this folder on its PYTHONPATH, and from its children.

It makes the process see what it would on macOS: no `/proc` and `/sys`, none of Linux's own names in the modules of the
operating system, another `sys.platform`, another way to sync a file and to know a boot. Only psutil still reads
`/proc`, because on macOS it has other ways.

    PYTHONPATH=tests/support/without_linux python -m pytest tests/unit/job
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
import resource
import select
import shutil
import signal
import socket
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

_HERE = Path(__file__).parent
_LINUX: dict[Any, tuple[str, ...]] = {
    os: (
        *("pidfd_open", "P_PIDFD", "memfd_create", "copy_file_range", "posix_fadvise", "posix_fallocate", "splice"),
        *("eventfd", "timerfd_create", "getrandom", "fdatasync", "pipe2", "sched_getaffinity", "sched_setaffinity"),
        *("sched_setscheduler", "getresuid", "getresgid", "setresuid", "setresgid", "setns", "unshare", "login_tty"),
        *("O_TMPFILE", "O_PATH", "O_DIRECT", "O_NOATIME", "O_LARGEFILE", "O_RSYNC", "preadv2", "posix_openpt"),
    ),
    fcntl: (
        *("F_OFD_GETLK", "F_OFD_SETLK", "F_OFD_SETLKW", "F_ADD_SEALS", "F_GET_SEALS", "F_SETPIPE_SZ", "F_GETPIPE_SZ"),
        *("F_NOTIFY", "F_SETLEASE", "F_GETLEASE", "F_SETSIG", "F_GETSIG", "FICLONE", "FICLONERANGE"),
    ),
    signal: (
        *("SIGPWR", "SIGSTKFLT", "SIGPOLL", "SIGCLD", "SIGRTMIN", "SIGRTMAX", "sigtimedwait", "sigwaitinfo"),
        "pidfd_send_signal",
    ),
    socket: (
        *("SO_PEERCRED", "SO_PASSCRED", "SO_BINDTODEVICE", "SO_PEERSEC", "SO_DOMAIN", "SO_PROTOCOL", "SO_MARK"),
        *("SOCK_CLOEXEC", "SOCK_NONBLOCK", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_CAN", "AF_ALG", "AF_TIPC"),
        *("TCP_USER_TIMEOUT", "TCP_QUICKACK", "TCP_CORK", "TCP_DEFER_ACCEPT", "TCP_CONGESTION", "TCP_KEEPIDLE"),
        *("MSG_MORE", "MSG_NOSIGNAL", "MSG_CMSG_CLOEXEC", "MSG_ERRQUEUE"),
    ),
    select: ("epoll", *(name for name in dir(select) if name.startswith("EPOLL"))),
    time: ("CLOCK_BOOTTIME", "CLOCK_TAI", "pthread_getcpuclockid"),
    resource: ("prlimit", "RUSAGE_THREAD", "RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_RTPRIO", "RLIMIT_SIGPENDING"),
    errno: ("EREMOTEIO", "EUCLEAN", "ENOKEY", "EMEDIUMTYPE", "ENOMEDIUM", "EBADFD", "ERESTART", "ENONET", "ENOPKG"),
}
_HIDDEN = ("/proc", "/sys")
_ASKED_BY = 8
"""psutil opens a file through that many functions at most."""
_F_FULLFSYNC = 51
"""The number that macOS has for it. Linux refuses it."""


def _hide_names() -> None:
    for module, names in _LINUX.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    tempfile._O_TMPFILE_WORKS = False  # type: ignore[attr-defined]
    shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined]
    sysconfig.get_config_vars()  # from a file that is named after the platform
    sys.platform = "darwin"


def _hide_files() -> None:
    for module, names in (
        (builtins, ("open",)),
        (io, ("open",)),
        (os, ("open", "stat", "lstat", "readlink", "listdir", "scandir", "access", "statvfs")),
    ):
        for name in names:
            setattr(module, name, _without(getattr(module, name)))


def _without(function: Callable[..., Any]) -> Callable[..., Any]:
    def without(path: Any = ".", *arguments: Any, **named: Any) -> Any:
        if isinstance(path, str | os.PathLike) and _is_hidden(os.fspath(path)) and not _asked_by_psutil():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        return function(path, *arguments, **named)

    return without


def _is_hidden(path: str | bytes) -> bool:
    return os.fsdecode(path).startswith(tuple(f"{each}/" for each in _HIDDEN)) or path in _HIDDEN


def _asked_by_psutil() -> bool:
    frame = sys._getframe(2)
    for _ in range(_ASKED_BY):
        if frame.f_globals.get("__name__", "").partition(".")[0] == psutil.__name__:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def _sync_as_macos() -> None:
    plain = fcntl.fcntl

    def control(descriptor: Any, command: int, argument: Any = 0) -> Any:
        if command != _F_FULLFSYNC:
            return plain(descriptor, command, argument)
        os.environ["FULL_SYNCS"] = str(int(os.environ.get("FULL_SYNCS", "0")) + 1)
        os.fsync(descriptor)
        return 0

    fcntl.fcntl = control
    setattr(fcntl, "F_FULLFSYNC", _F_FULLFSYNC)  # noqa: B010 - which this system does not have


_hide_names()
_hide_files()
_sync_as_macos()
os.environ["PATH"] = f"{_HERE}{os.pathsep}{os.environ.get('PATH', os.defpath)}"  # for `sysctl`
