"""Backends by name."""

from __future__ import annotations

from penstock.config.named_class import named_class
from penstock.errors import ConfigError
from penstock.state.backends.base import StateBackendFactory
from penstock.state.backends.blob.factory import BlobFactory
from penstock.state.backends.changelog_files.factory import ChangelogFilesFactory
from penstock.state.backends.changelog_stream.factory import ChangelogStreamFactory

_FACTORIES: dict[str, type[StateBackendFactory]] = {
    "changelog-files": ChangelogFilesFactory,
    "blob": BlobFactory,
    "changelog-stream": ChangelogStreamFactory,
}


def built_in() -> dict[str, StateBackendFactory]:
    return {name: factory() for name, factory in _FACTORIES.items()}


def backend_factory(name: str) -> StateBackendFactory:
    """The backend with a short name, or of a class `module:Class`. Raises ConfigError if there is no such backend (the
    error lists all), or it is not a StateBackendFactory."""
    if name in _FACTORIES:
        return _FACTORIES[name]()
    if ":" not in name:
        raise ConfigError(
            f"state backend `{name}` is not known; known: {', '.join(_FACTORIES)}, or your own as `module:Class`"
        )
    return named_class(
        name,
        StateBackendFactory,  # type: ignore[type-abstract]
        "penstock.state.backends.base.StateBackendFactory",
        f"state backend `{name}`",
    )()
