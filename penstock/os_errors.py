"""Errors of the operating system, by their remedy. None of them says that stored bytes are damaged."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import ConfigError, PenstockError, RetryableError

_TOLD = (
    *(errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.EIO, errno.ENOMEM, errno.ESTALE, errno.EAGAIN, errno.ENAMETOOLONG),
)
_BY_TEXT = {os.strerror(code): code for code in _TOLD}


@contextmanager
def explained(what: str, setting: str) -> Iterator[None]:
    """Turn an OSError into an error that begins with `what`, and names the remedy; see `explain`."""
    try:
        yield
    except OSError as error:
        raise explain(error, what, setting) from error


def explain(error: OSError, what: str, setting: str) -> PenstockError:
    """A RetryableError or ConfigError that says `what` could not be done, why, and what to do about it.

    `setting` is the key of the configuration that names the place.
    """
    said = f"{what}: {error.strerror or error}"
    match error.errno:
        case errno.EMFILE | errno.ENFILE:
            return RetryableError(f"{said}. Raise the limit of open files of this process (`ulimit -n`)")
        case errno.ENOSPC | errno.EDQUOT:
            return RetryableError(f"{said}. Free space there, or name a larger place with `{setting}`")
        case errno.EFBIG:
            return RetryableError(f"{said}. Raise the file size limit of this process (`ulimit -f`)")
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return ConfigError(f"{said}. Let this user read and write there, or name another place with `{setting}`")
        case errno.EOPNOTSUPP | errno.ENOTSUP | errno.ENOSYS:
            return ConfigError(f"{said}. The file system needs hard links and locks: choose another for `{setting}`")
        case errno.ENOTDIR | errno.EEXIST:
            return ConfigError(f"{said}. A file is where a folder is needed: remove it or choose another `{setting}`")
        case errno.ENAMETOOLONG:
            return ConfigError(f"{said}. Shorten the names of the job or its stores")
        case _:
            return RetryableError(f"{said}. Look for trouble of the disk or its mount, then try again")


def os_error_in(text: str) -> OSError | None:
    """The error of the operating system that a library reports in words only; None if the text has none that this
    module knows. A missing file is not among them: its meaning depends on the caller."""
    found = next((words for words in _BY_TEXT if words in text), None)
    return None if found is None else OSError(_BY_TEXT[found], text)
