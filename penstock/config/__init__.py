"""Typed configuration under Samza's key names. `load_config` reads it, `describe` lists every key."""

from penstock.config.load import load_config
from penstock.config.model import (
    ContainerSettings,
    JobConfig,
    JobSettings,
    StateSettings,
    StoreSettings,
    SystemSettings,
    TaskSettings,
)
from penstock.config.table import AnyKey, Key, OffsetDefault, describe

__all__ = [
    "AnyKey",
    "ContainerSettings",
    "JobConfig",
    "JobSettings",
    "Key",
    "OffsetDefault",
    "StateSettings",
    "StoreSettings",
    "SystemSettings",
    "TaskSettings",
    "describe",
    "load_config",
]
