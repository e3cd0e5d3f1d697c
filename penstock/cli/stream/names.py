"""Finding a stream by the name a person gives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.admin.jobs import load_without_job
from penstock.api.ssp import SystemStream
from penstock.config.model import DEFAULT_SYSTEM
from penstock.errors import ConfigError, NotFoundError
from penstock.system.base import System
from penstock.system.registry import open_system

StreamName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The stream: `system.stream`, or a name without a dot for one of `local`.",
        show_default=False,
    ),
]


def no_stream(stream: SystemStream) -> NotFoundError:
    """The error where a command is about a stream that should be there, so that creating it is no advice."""
    return NotFoundError(
        f"the stream `{stream}` does not exist; `penstock stream list {stream.system}` shows those that do"
    )


def open_stream(name: str, file: Path | None, assignments: list[str] | None) -> tuple[System, SystemStream]:
    """The system of a stream and the stream's full name.

    Raises:
        ConfigError: there is no such system.
    """
    config = load_without_job(file, assignments)
    stream = SystemStream.parse(name if "." in name else f"{DEFAULT_SYSTEM}.{name}")
    try:
        return open_system(config.system(stream.system)), stream
    except ConfigError as error:
        if stream.system in config.system_names:
            raise
        raise ConfigError(
            f"{error}. If `{name}` is the name of a local stream, write `{DEFAULT_SYSTEM}.{name}`"
        ) from None
