"""Prometheus's own tool for rules: the one of this machine, or else from Debian's package, which is only unpacked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.testing.kafka_jars import cache_folder, locked

_DOWNLOAD_S = 300


def promtool() -> str:
    """The program. Skips the test where there is none."""
    folder = cache_folder() / "prometheus"
    with locked(folder, _DOWNLOAD_S):
        found = _found(folder)
        if found is None and shutil.which("apt-get") and shutil.which("dpkg"):
            folder.mkdir(parents=True, exist_ok=True)
            _run(["apt-get", "download", "-q", "prometheus"], folder)
            for package in folder.glob("prometheus_*.deb"):
                _run(["dpkg", "-x", str(package), str(folder)], folder)
                package.unlink()
            found = _found(folder)
    if found is None:
        pytest.skip("no promtool: install Debian's package prometheus")
    return found


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, capture_output=True, timeout=_DOWNLOAD_S, check=False)


def _found(folder: Path) -> str | None:
    return shutil.which("promtool") or shutil.which("promtool", path=str(folder / "usr" / "bin"))
