"""Backends by name."""

from __future__ import annotations

from penstock.errors import ConfigError
from penstock.state.backends.base import StateBackendFactory
from penstock.state.backends.changelog_files import ChangelogFilesFactory


def backend_factory(name: str) -> StateBackendFactory:
    """The backend's factory. Raises ConfigError listing the names there are."""
    factories: dict[str, type[StateBackendFactory]] = {"changelog-files": ChangelogFilesFactory}
    if name not in factories:
        raise ConfigError(f"state backend `{name}` is not known; known: {', '.join(factories)}")
    return factories[name]()
