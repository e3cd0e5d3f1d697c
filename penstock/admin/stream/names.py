"""Finds a stream by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.admin.jobs import load_without_job
from penstock.api.ssp import SystemStream
from penstock.base.wording import owned_stream
from penstock.config.settings import DEFAULT_SYSTEM
from penstock.errors import ConfigError, NotFoundError
from penstock.system.base import System
from penstock.system.registry import open_system


@dataclass(frozen=True, slots=True)
class ConfigSources:
    """The sources of a configuration. The fields are the arguments of `open_job`."""

    file: str | Path | None = None
    assignments: Sequence[str] | None = None
    overrides: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class FoundStream:
    """A stream's full name and its system. The stream need not exist."""

    stream: SystemStream
    system: System = field(repr=False)
    sources: ConfigSources = field(repr=False)


def no_stream(stream: SystemStream) -> NotFoundError:
    """The error for a stream that should exist. It does not advise to create the stream."""
    return NotFoundError(
        f"the stream `{stream}` does not exist; `penstock stream list {stream.system}` lists those that do"
    )


def closed_to_others(stream: object, owner: str | None) -> str | None:
    """The reason why nobody but its owner may write to a stream; None if everybody may."""
    return None if owner is None else f"`{stream}` is {owned_stream(owner)} that only its owner writes: {owner}"


def full_name(name: str) -> str:
    """The name with its system, which is `local` if the name has no dot."""
    return name if "." in name else f"{DEFAULT_SYSTEM}.{name}"


def open_stream(
    name: str,
    file: str | Path | None = None,
    assignments: Sequence[str] | None = None,
    *,
    overrides: Mapping[str, object] | None = None,
) -> FoundStream:
    """Find a stream and its system. The stream need not exist.

    Args:
        name: `system.stream`, or a name without a dot for a stream of the system `local`.
        file, assignments, overrides: as in `open_job`.

    Raises:
        ConfigError: the system is not configured.

    Example:
        >>> str(admin.open_stream("trips").stream)
        'local.trips'
    """
    config = load_without_job(file, assignments, overrides)
    stream = SystemStream.parse(full_name(name))
    try:
        system = open_system(config.system(stream.system))
    except ConfigError as error:
        if stream.system in config.system_names:
            raise
        raise ConfigError(
            f"{error}. If `{name}` is the name of a local stream, write `{DEFAULT_SYSTEM}.{name}`"
        ) from None
    return FoundStream(stream, system, ConfigSources(file, assignments, overrides))
