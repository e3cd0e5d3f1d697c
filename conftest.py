"""The examples in docstrings are tests: pytest runs those of each module of `penstock`."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
import penstock.testing
from penstock import admin


@pytest.fixture(scope="session", autouse=True)
def _names(doctest_namespace: dict[str, Any]) -> None:
    """The names that examples use without an import (see the docstring of `penstock`)."""
    doctest_namespace |= {"ps": penstock, "admin": admin, "TestRunner": penstock.testing.TestRunner}
