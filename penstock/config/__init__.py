"""Typed configuration under Samza's key names. `load_config` reads it, `describe` lists every key.

A package of the kernel: every room but `base` and `api` may import it.
"""

from penstock.config.keys import describe
from penstock.config.load import load_config
from penstock.config.model import JobConfig

__all__ = ["JobConfig", "describe", "load_config"]
