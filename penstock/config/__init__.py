"""Typed configuration under Samza's key names. `load_config` reads it, `describe` lists every key."""

from penstock.config.keys import describe
from penstock.config.load import load_config
from penstock.config.model import JobConfig

__all__ = ["JobConfig", "describe", "load_config"]
