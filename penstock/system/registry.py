"""Systems by their configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.base.plugins import SYSTEMS
from penstock.config.model import JobConfig, SystemSettings, named_class
from penstock.config.settings import SystemKeys
from penstock.errors import ConfigError, PenstockError
from penstock.system.base import System


def system_class(settings: SystemSettings) -> type[System]:
    """The class of a system. Raises ConfigError if it cannot be imported or is not a `System`."""
    where = f"`systems.{settings.name}.samza.factory` = `{settings.factory}`"
    base: type[System] = System  # type: ignore[type-abstract]
    return named_class(SYSTEMS.get(settings.factory, settings.factory), base, "penstock.system.base.System", where)


def open_system(settings: SystemSettings) -> System:
    """The system that `systems.<name>.*` describes.

    Raises:
        ConfigError: its class cannot be imported or is not a `System`, or the class refuses an option.
    """
    found = system_class(settings)
    try:
        system = found.configured(settings.name, settings.rooted if found.takes_root else settings.options)
    except PenstockError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the system `{settings.name}` could not be made by `{settings.factory}`: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(system, System) or system.name != settings.name:
        raise ConfigError(f"`{settings.factory}` did not make a System of the name `{settings.name}`, but {system!r}")
    return system


def open_systems(config: JobConfig) -> dict[str, System]:
    """Every system the configuration names, and `local`. Raises ConfigError as `open_system`."""
    return {name: open_system(config.system(name)) for name in config.system_names}


def open_named(
    names: Collection[str], config: JobConfig, given: Mapping[str, System] | None = None
) -> dict[str, System]:
    """The systems that an application uses.

    Args:
        given: systems that are open already, by name.

    Raises:
        ConfigError: one is neither given nor configured, or as `open_system`.
    """
    opened = given or {}
    if missing := sorted(set(names) - opened.keys() - set(config.system_names)):
        raise ConfigError(
            "\n".join(
                f"there is no system `{name}`, which the application uses; known: "
                f"{', '.join(config.system_names)}; set `{SystemKeys.factory.full(name)}`"
                for name in missing
            )
        )
    return {name: opened[name] if name in opened else open_system(config.system(name)) for name in names}
