"""The folder of the examples, which comes first on `sys.path` where `penstock run` loads one of its files."""

from __future__ import annotations

import sys
from importlib.metadata import packages_distributions

from tests.support.tools.places import ROOT


def test_no_example_hides_a_package_that_is_installed() -> None:
    names = {each.stem for each in (ROOT / "examples").iterdir() if each.suffix == ".py" or each.is_dir()}
    assert "utilisation" in names
    assert names & (packages_distributions().keys() | sys.stdlib_module_names) == set()
