"""The package as users get it: built from the working tree, and installed into environments."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.tools.places import ROOT
from tools.release_check import BUILD_LOCK, locked_packages

BIN = Path(sys.executable).parent
PIP = ("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
SOURCES = ("penstock", "pyproject.toml", "README.md", "LICENSE")
_UNREACHABLE = re.compile("connect|max retries|resolve|timed out", re.IGNORECASE)
_OWN = ("PYTHON", "PYTEST", "PENSTOCK", "SPARK", "VIRTUAL_ENV")
"""Variables that begin so are those of the test, and not of a user."""


def build(folder: Path) -> Path:
    """The wheel of the working tree, built from the sdist, which is beside it."""
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(source)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


class Environment:
    """A virtual environment, and commands in it with a user's variables."""

    def __init__(self, folder: Path, *options: str) -> None:
        subprocess.run([sys.executable, "-m", "venv", *options, str(folder)], check=True)
        self.bin = folder / "bin"
        (self.packages,) = folder.glob("lib/python*/site-packages")

    def call(self, *command: str, folder: Path, status: int = 0) -> str:
        """Run a command in a folder; its output, with that for errors."""
        path = os.pathsep.join(each for each in os.environ["PATH"].split(os.pathsep) if Path(each) != BIN)
        variables = {name: text for name, text in os.environ.items() if not name.startswith(_OWN)}
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=folder,
            env={**variables, "PATH": f"{self.bin}{os.pathsep}{path}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == status, f"{command} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def install_locked(self, names: Iterable[str], folder: Path) -> None:
        """Install packages in their locked versions, or skip the test if the index cannot be reached."""
        found = {}
        for lock in (BUILD_LOCK, *(ROOT / "requirements" / f"{name}.lock" for name in ("dev", "java"))):
            found.update(locked_packages(lock.read_text("utf-8")))
        lines = [
            f"{name}=={found[name].version} {' '.join(f'--hash=sha256:{each}' for each in found[name].sha256)}"
            for name in sorted(set(names))
        ]
        (folder / "wanted.lock").write_text("\n".join(lines), encoding="utf-8")
        try:
            self.call(*PIP, "--require-hashes", "--no-build-isolation", "-r", "wanted.lock", folder=folder)
        except AssertionError as error:
            if _UNREACHABLE.search(str(error)):
                pytest.skip(f"the index of packages cannot be reached: {str(error).splitlines()[-1]}")
            raise


def for_type_checkers(wheel: Path, folder: Path) -> Environment:
    """An environment with the wheel, which finds other packages in the development environment."""
    environment = Environment(folder, "--without-pip")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(environment.packages)
    (environment.packages / "development.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return environment
