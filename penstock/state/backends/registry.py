"""Backends by name."""

from __future__ import annotations

from penstock.base.plugins import BACKENDS
from penstock.config.named_class import named_class
from penstock.errors import ConfigError
from penstock.state.backends.base import StateBackendFactory


def built_in() -> dict[str, StateBackendFactory]:
    return {name: backend_factory(name) for name in BACKENDS}


def backend_factory(name: str) -> StateBackendFactory:
    """The backend with a short name, or of a class `module:Class`. Raises ConfigError if there is no such backend (the
    error lists all), or it is not a StateBackendFactory."""
    if name not in BACKENDS and ":" not in name:
        raise ConfigError(
            f"state backend `{name}` is not known; known: {', '.join(BACKENDS)}, or your own as `module:Class`"
        )
    return named_class(
        BACKENDS.get(name, name),
        StateBackendFactory,  # type: ignore[type-abstract]
        "penstock.state.backends.base.StateBackendFactory",
        f"state backend `{name}`",
    )()
