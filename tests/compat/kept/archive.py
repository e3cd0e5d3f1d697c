"""Kept versions: their folders, what is in them, and the code that wrote them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

from tests.support.tools.places import ROOT

VERSIONS = ROOT / "tests" / "compat" / "versions"
"""A folder for each kept version: `commit`, and `<job>.tar.xz` and `<job>.json` for each job."""
COMMIT = "commit"
_DEADLINE_S = 300


def this_version() -> str:
    found: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return found


def kept_jobs() -> list[tuple[str, str]]:
    """Each version with each of its jobs."""
    return sorted((path.parent.name, path.name.removesuffix(".tar.xz")) for path in VERSIONS.glob("*/*.tar.xz"))


def pack(folder: Path, file: Path) -> None:
    """Write an archive of a folder. Equal folders have equal archives: owners and times are left out."""
    with tarfile.open(file, "w:xz", preset=9, format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            entry = archive.gettarinfo(str(path), path.relative_to(folder).as_posix())
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = ""
            data = path.read_bytes() if path.is_file() else b""
            archive.addfile(entry, io.BytesIO(data))


def unpack(version: str, job: str, folder: Path) -> Path:
    """The folder with what a version has left of a job."""
    with tarfile.open(VERSIONS / version / f"{job}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def commit_of(version: str) -> str:
    return (VERSIONS / version / COMMIT).read_text("ascii").strip()


def has_commit(commit: str) -> bool:
    """True if the history of this clone has the commit."""
    return not _git("cat-file", "-e", f"{commit}^{{commit}}").returncode


def check_out(commit: str, folder: Path) -> Path:
    """Penstock and its tests as of a commit."""
    done = _git("archive", commit, "penstock", "tests/compat", "tests/support", "pyproject.toml")
    done.check_returncode()
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def play(tree: Path, do: str, job: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Let the Penstock of a tree write, show or finish a job (`tests/compat/kept/play.py`)."""
    return subprocess.run(
        [sys.executable, "-m", "tests.compat.kept.play", do, job, str(folder)],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )


def head() -> str:
    return _git("rev-parse", "HEAD").stdout.decode().strip()


def changes() -> str:
    """The files that write the jobs and are not committed."""
    return _git("status", "--porcelain", "--", "penstock", "tests/compat/kept", "tests/support").stdout.decode()


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False, timeout=60)
