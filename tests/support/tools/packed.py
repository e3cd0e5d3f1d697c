"""A virtual environment with Penstock and what it needs on executors, packed for `--archives`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import penstock

_LEFT_OUT = re.compile(r"(^|/)(tests?|include|__pycache__|\.\.|bin)(/|$)|\.(a|h|hpp|pxd|pyx)$")
_PENSTOCK = Path(penstock.__file__).parent
_SPARK = "pyspark"
"""Executors have it from Spark."""


def pack_environment(folder: Path, *, with_penstock: bool) -> Path:
    """Make and pack an environment. Returns the archive: Spark unpacks a `.tar` without the right to execute files."""
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=120)
    (packages,) = environment.glob("lib/python*/site-packages")
    if with_penstock:
        shutil.copytree(_PENSTOCK, packages / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
    for each in _needed("penstock-streams", {}).values():
        _copy(each, packages)
    archive = folder / "environment.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(environment, ".")
    shutil.rmtree(environment)
    return archive


def zip_penstock(folder: Path) -> Path:
    """Penstock alone, for `--py-files`."""
    with zipfile.ZipFile(folder / "penstock.zip", "w") as archive:
        for file in sorted(_PENSTOCK.rglob("*.py")):
            archive.write(file, file.relative_to(_PENSTOCK.parent))
    return folder / "penstock.zip"


def _needed(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """The requirements of a distribution, without its extras, by name."""
    for requirement in distribution(name).requires or []:
        needed = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        if "extra ==" not in requirement and needed != _SPARK and needed not in found and _installed(needed):
            found[needed] = distribution(needed)
            _needed(needed, found)
    return found


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except ModuleNotFoundError:  # for another platform or version of Python
        return False
    return True


def _copy(package: Distribution, to: Path) -> None:
    for file in package.files or []:
        if not _LEFT_OUT.search(str(file)):
            target = to / str(file)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(file.locate()), target)
