"""Systems by their configuration."""

from __future__ import annotations

from importlib import import_module

from penstock.config.model import JobConfig, SystemSettings
from penstock.errors import ConfigError, PenstockError
from penstock.system.base import System
from penstock.system.local import LocalSystem
from penstock.system.memory import MemorySystem

_SYSTEMS: dict[str, type[System]] = {"local": LocalSystem, "memory": MemorySystem}


def open_system(settings: SystemSettings) -> System:
    """The system that `systems.<name>.*` describes.

    Raises:
        ConfigError: its class cannot be imported or is no `System`, or the class refuses an option.
    """
    found = _SYSTEMS.get(settings.factory) or _own(settings)
    try:
        system = found.configured(settings.name, settings.options)
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


def _own(settings: SystemSettings) -> type[System]:
    where = f"`systems.{settings.name}.samza.factory` = `{settings.factory}`"
    module, _, attribute = settings.factory.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{where} cannot be loaded: {error}. The module must be importable by the driver and on every host; "
            "`spark.submit.pyFiles` ships it there"
        ) from error
    if not (isinstance(found, type) and issubclass(found, System)):
        raise ConfigError(f"{where} is not a subclass of penstock.system.base.System")
    return found
