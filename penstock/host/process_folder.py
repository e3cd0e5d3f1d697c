"""Temporary folders that are removed with the process that made them, however it ends."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE

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
