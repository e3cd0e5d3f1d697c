"""The file with the address of a dashboard. Logs are read by others than the user who may act."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from penstock.base.files import PRIVATE_FILE, PRIVATE_FOLDER
from penstock.errors import ConfigError


class AddressFile:
    """A file that only this user can read, with an address that has a token. A later dashboard replaces it."""

    def __init__(self, path: Path, address: str) -> None:
        """Write the file, all at once, and not through a link.

        Raises:
            ConfigError: the folder cannot be written to.
        """
        self.path, self._line = path, f"{address}\n"
        written = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            written.unlink(missing_ok=True)
            descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
            with open(descriptor, "w", encoding="utf-8") as opened:
                opened.write(self._line)
            written.replace(path)
        except OSError as error:
            raise ConfigError(
                f"the address of the dashboard cannot be written to `{path}`: {error.strerror}. Make the folder "
                "writable, or choose a token, so that no file needs to have it"
            ) from error

    def remove(self) -> None:
        """Remove the file, unless it is a later dashboard's."""
        with suppress(OSError, UnicodeDecodeError):
            if self.path.read_text("utf-8") == self._line:
                self.path.unlink()
