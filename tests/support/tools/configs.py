"""Configurations made of what a test says, and nothing from around it."""

from __future__ import annotations

import pytest

from penstock.config import JobConfig, load_config
from penstock.errors import ConfigError

ENV = {"PENSTOCK_HOME": "/srv/penstock"}


def load(*assignments: str, **overrides: object) -> JobConfig:
    """A configuration of a job named flights."""
    return load_config(overrides={"job.name": "flights", **overrides}, assignments=assignments, environ=ENV)


def refused(*assignments: str, **overrides: object) -> str:
    """Why there is no such configuration."""
    with pytest.raises(ConfigError) as caught:
        load(*assignments, **overrides)
    return str(caught.value)
