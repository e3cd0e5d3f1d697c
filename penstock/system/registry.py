"""Systems by their configuration."""

from __future__ import annotations

from penstock.config.model import JobConfig, SystemSettings
from penstock.system.base import System
from penstock.system.local import LocalSystem
from penstock.system.memory import MemorySystem


def open_system(settings: SystemSettings) -> System:
    """The system that `systems.<name>.*` describes."""
    if settings.type == "memory":
        return MemorySystem(settings.name)
    return LocalSystem(settings.name, str(settings.path))


def open_systems(config: JobConfig) -> dict[str, System]:
    """Every system the configuration names, and `local`. Raises ConfigError for one without a type."""
    return {name: open_system(config.system(name)) for name in config.system_names}
