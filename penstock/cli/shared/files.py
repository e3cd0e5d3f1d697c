"""The text of a file that a command reads."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.errors import ConfigError, NotFoundError

STDIN = "-"


def read_text(file: str) -> str:
    """The text of a file, or of standard input if it is `-`.

    Raises:
        NotFoundError: there is no such file.
        ConfigError: it cannot be read.
    """
    try:
        data = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
        return data.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file `{file}`") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"`{file}` cannot be read: {error}") from error
