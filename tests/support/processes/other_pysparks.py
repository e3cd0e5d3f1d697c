"""PySparks of other versions than the one that the tests are installed with."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from penstock.testing.kafka.jars import cache_folder, locked

VERSIONS = {"4.0.1": "0.10.9.9", "4.1.4": "0.10.9.9", "4.2.1": "0.10.9.9"}
"""By version of PySpark, that of py4j."""
_FETCH_S = 900.0


def pyspark_of(version: str) -> Path:
    """The folder of a PySpark, for PYTHONPATH. Skips the test where it cannot be fetched."""
    folder = cache_folder() / f"pyspark-{version}"
    if folder.exists():
        return folder
    with locked(folder, _FETCH_S + 60):
        if not folder.exists():
            with tempfile.TemporaryDirectory(prefix=f"{folder.name}.new-", dir=folder.parent) as temporary:
                place = Path(temporary) / "packages"
                needed = [f"pyspark=={version}", f"py4j=={VERSIONS[version]}"]
                fetch = [
                    sys.executable,
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--no-deps",
                    "--target",
                    str(place),
                    *needed,
                ]
                done = subprocess.run(fetch, capture_output=True, text=True, timeout=_FETCH_S, check=False)
                if done.returncode:
                    pytest.skip(f"PySpark {version} cannot be fetched: {done.stderr.strip()[-200:]}")
                place.rename(folder)
    return folder
