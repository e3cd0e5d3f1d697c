"""The examples in docstrings are tests: pytest runs those of each module of `penstock`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
import penstock.spark
import penstock.testing
from penstock import admin
from tests.support.jobs.example_job import ExampleJob
from tests.support.tools.quick_imports import without_grammars

without_grammars()


@pytest.fixture(scope="session", autouse=True)
def _names(doctest_namespace: dict[str, Any]) -> None:
    """The names that examples use without an import (see the docstring of `penstock`)."""
    doctest_namespace |= {
        "ps": penstock,
        "pss": penstock.spark,
        "admin": admin,
        "TestRunner": penstock.testing.TestRunner,
    }


@pytest.fixture(scope="session")
def _example_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExampleJob]:
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_HOME", str(folder / "home"))
        yield ExampleJob(folder / "home", folder / "kept")


@pytest.fixture(autouse=True)
def _job_of_admin(request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]) -> None:
    """The examples of `penstock.admin` look at the job `flights`, which each of them finds as it was made."""
    if isinstance(request.node, pytest.DoctestItem) and request.node.name.startswith("penstock.admin"):
        request.getfixturevalue("_example_job").restore()
