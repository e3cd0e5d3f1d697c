"""Schemas that an application gives as text or as a file."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import ConfigError


def schema_text(given: object, ending: str, what: str) -> str:
    """The text of a schema.

    Args:
        given: the text, or the path of a file with it.
        ending: of such files: a text that ends so is a path.
        what: the beginning of errors.

    Raises:
        ConfigError: it is something else, or the file cannot be read.
    """
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(ending)):
        try:
            return Path(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{what}: the schema `{given}` cannot be read: {error}") from error
    if not isinstance(given, str):
        raise ConfigError(f"{what}: a schema is a dict, text, or the path of a file `*{ending}`, not {given!r}")
    return given
