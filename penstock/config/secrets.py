"""The sources that secret values are read from."""

from __future__ import annotations

import os
import re
import shlex
import subprocess

from penstock.base.redaction import is_secret
from penstock.config.values.kinds import Raw

_REFERENCE = re.compile(r"\$\{(file|env|cmd):([^}]+)\}")
_WHOLE = re.compile(r"(file|env|cmd):(.+)", re.DOTALL)
_MOST_BYTES = 1 << 20
_COMMAND_SECONDS = 60.0


class SourceError(ValueError):
    """The source of a value is absent or fails. The message does not contain the value."""


def refers(key: str, raw: Raw | None) -> bool:
    """True if a value, or a part of it, refers to a file, the environment or a command."""
    items = (raw,) if isinstance(raw, str) else raw or ()
    return any(_REFERENCE.search(each) or (is_secret(key) and _WHOLE.fullmatch(each)) for each in items)


def resolve(key: str, raw: Raw) -> Raw:
    """Replace the references in a value.

    `${file:PATH}`, `${env:NAME}` and `${cmd:COMMAND}` may be parts of any value. The whole value of a secret key may
    also be a reference without `${}`: other values, such as URLs, begin with `file:` themselves.

    Raises:
        SourceError: the source is not there, or fails.
    """
    if not isinstance(raw, str):
        return tuple(_text(key, each) for each in raw)
    return _text(key, raw)


def _text(key: str, text: str) -> str:
    if is_secret(key) and (whole := _WHOLE.fullmatch(text)) is not None:
        return _read(*whole.groups())
    return _REFERENCE.sub(lambda found: _read(*found.groups()), text)


def _read(source: str, place: str) -> str:
    if source == "env":
        try:
            return os.environ[place]
        except KeyError:
            raise SourceError(f"the environment has no variable `{place}`") from None
    data = _of_file(place) if source == "file" else _of_command(place)
    if len(data) > _MOST_BYTES:
        raise SourceError(f"`{source}:{place}` has more than {_MOST_BYTES} bytes")
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise SourceError(f"`{source}:{place}` is not UTF-8") from None


def _of_file(place: str) -> bytes:
    try:
        with open(os.path.expanduser(place), "rb") as file:
            return file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise SourceError(f"the file `{place}` cannot be read: {error.strerror}") from None


def _of_command(command: str) -> bytes:
    """The command's standard output. Its standard error is that of this process."""
    try:
        done = subprocess.run(  # noqa: S603 - the configuration says what to run
            shlex.split(command),
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SourceError(f"the command `{command}` did not end within {_COMMAND_SECONDS:.0f} s") from None
    except (OSError, ValueError) as error:
        raise SourceError(f"the command `{command}` cannot be run: {error}") from None
    if done.returncode:
        raise SourceError(f"the command `{command}` ended with status {done.returncode}")
    return done.stdout
