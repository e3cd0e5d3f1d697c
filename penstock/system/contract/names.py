"""Names of streams, and the options of a system."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from penstock.errors import ConfigError

QUERY_SYSTEM = "spark"
"""The name of the system whose streams nobody reads or writes: the batches of a streaming query around the job, which
hands over the rows of the inputs and takes those of the outputs."""
_STREAM_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,248}")


def is_stream_name(text: str) -> bool:
    """True if the text can be a stream's name.

    Example:
        >>> is_stream_name("flights.by-origin"), is_stream_name("flights/by/origin")
        (True, False)
    """
    return _STREAM_NAME.fullmatch(text) is not None


def check_stream_name(stream: str) -> None:
    """Check that a name can be a folder here and a topic in Kafka.

    Raises:
        ConfigError: naming the stream and the rule.

    Example:
        >>> check_stream_name("flights.by-origin")
    """
    if not is_stream_name(stream):
        raise ConfigError(
            f"`{stream}` cannot be a stream's name: it is 1 to 249 of the characters a-z A-Z 0-9 . _ - "
            "and does not start with a dot"
        )


def check_options(name: str, options: Mapping[str, str], known: Iterable[str]) -> None:
    """Refuse options that a system does not know; for `System.configured`.

    Args:
        name: the system's name in the configuration.
        options: the configured ones, as `System.configured` gets them.
        known: the existing ones.

    Raises:
        ConfigError: names every unknown option, and all known ones.

    Example:
        >>> check_options("archive", {"folder": "/srv"}, ["folder"])
    """
    known = sorted(known)
    unknown = [f"`systems.{name}.{option}`" for option in sorted(options) if option not in known]
    if unknown:
        there = ", ".join(f"`{option}`" for option in known) or "none"
        raise ConfigError(f"unknown options: {', '.join(unknown)}; the options of the system `{name}` are: {there}")


def positive_option(name: str, options: Mapping[str, str], option: str) -> int | None:
    """The integer that an option of a system gives, at least 1; None if it is left out. Raises ConfigError.

    Example:
        >>> positive_option("archive", {"partitions": "8"}, "partitions")
        8
    """
    text = options.get(option)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise ConfigError(f"`systems.{name}.{option}` = `{text}` is not a number from 1")
    return int(text)


def absolute_place(place: str) -> str:
    """A URL or path for processes that have another working directory.

    Example:
        >>> absolute_place("s3://bucket/tables"), absolute_place("/srv/tables")
        ('s3://bucket/tables', '/srv/tables')
    """
    return place if "://" in place else str(Path(place).expanduser().absolute())
