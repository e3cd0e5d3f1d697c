"""Packages that the tests are not installed with: other versions of PySpark, and the client of Spark Connect."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from penstock.testing.kafka_jars import cache_folder, locked

VERSIONS = {"4.0.1": "0.10.9.9", "4.1.4": "0.10.9.9", "4.2.1": "0.10.9.9"}
"""By version of PySpark, that of py4j."""
_CONNECT = ("grpcio==1.76.0", "grpcio-status==1.76.0", "googleapis-common-protos==1.72.0", "zstandard==0.25.0")
_FETCH_S = 900.0


def pyspark_of(version: str) -> Path:
    """The folder of a PySpark, for PYTHONPATH. Skips the test where it cannot be fetched."""
    return _fetched(f"pyspark-{version}", f"pyspark=={version}", f"py4j=={VERSIONS[version]}")


def connect_client() -> Path:
    """The folder of what PySpark's client of Spark Connect needs, likewise."""
    return _fetched("spark-connect", *_CONNECT)


def _fetched(name: str, *needed: str) -> Path:
    folder = cache_folder() / name
    if folder.exists():
        return folder
    with locked(folder, _FETCH_S + 60):
        if not folder.exists():
            with tempfile.TemporaryDirectory(prefix=f"{folder.name}.new-", dir=folder.parent) as temporary:
                place = Path(temporary) / "packages"
                fetch = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place)]
                done = subprocess.run([*fetch, *needed], capture_output=True, text=True, timeout=_FETCH_S, check=False)
                if done.returncode:
                    pytest.skip(f"{name} cannot be fetched: {done.stderr.strip()[-200:]}")
                place.rename(folder)
    return folder
