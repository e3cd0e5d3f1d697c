"""The process that Spark's Python workers are forked from, and the objects that a worker keeps from its collector."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
import zipfile
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pyspark
import pytest
from pyspark import daemon

from penstock.spark.session.session import worker_daemon
from penstock.spark.workers.worker_daemon import _collect_lightly

LIBRARIES = Path(pyspark.__file__).parent / "python" / "lib"
CODE = """
from penstock.spark.workers.worker_daemon import _load, _prefer_installed_pyspark
_prefer_installed_pyspark()
import pyspark, sys
print(pyspark.__file__)
"""


class Cycle:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


def imported_from(*path: Path, then: str = "") -> str:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, path)))
    command = [sys.executable, "-c", CODE + then]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environment)
    return done.stdout.strip()


def test_the_installed_pyspark_is_used_if_it_is_the_version_of_the_zip() -> None:
    (py4j,) = LIBRARIES.glob("py4j-*-src.zip")
    assert imported_from(LIBRARIES / "pyspark.zip", py4j) == pyspark.__file__


def test_the_zip_is_used_if_it_is_another_version(tmp_path: Path) -> None:
    other = tmp_path / "pyspark.zip"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("pyspark/__init__.py", "")
        archive.writestr("pyspark/version.py", "__version__ = '4.2.0'\n")
    assert imported_from(other).startswith(str(other))


def test_what_a_worker_needs_is_loaded_and_pandas_is_not() -> None:
    names = (
        "penstock.spark.workers.worker",
        "penstock.container.launch",
        "pyspark.worker",
        "pyarrow.flight",
        "pandas",
    )
    told = imported_from(then=f"_load()\nprint([name in sys.modules for name in {names}])")
    assert told.endswith("[True, True, True, True, False]")


@pytest.mark.parametrize("key", ["spark.submit.pyFiles", "spark.files"])
def test_it_is_not_used_where_penstock_may_be_shipped_with_the_job(key: str) -> None:
    assert worker_daemon({}) == {"spark.python.daemon.module": "penstock.spark.workers.worker_daemon"}
    assert worker_daemon({key: "penstock.zip"}) == {}


def test_on_macos_it_is_used_on_a_cluster_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert worker_daemon({}) == worker_daemon({"spark.master": "local[2]"}) == {}
    assert worker_daemon({"spark.master": "spark://there:7077"}) != {}


def test_after_a_task_a_worker_collects_only_what_is_new() -> None:
    """PySpark's daemon calls `gc.collect()` of its own global `gc`."""
    assert vars(daemon)["gc"] is gc, "PySpark's daemon has changed: see where it collects garbage"
    hooked = SimpleNamespace(gc=gc)
    _collect_lightly(hooked)
    gc.collect()
    old = Cycle()
    gc.collect(1)  # it survives two collections of younger generations, and is in the oldest then
    gc.collect(1)
    kept, is_left = weakref.ref(old), weakref.ref(Cycle())
    del old
    hooked.gc.collect()
    assert is_left() is None
    assert kept() is not None
    gc.collect()
    assert kept() is None


def test_whatever_is_loaded_later_is_hidden_too() -> None:
    """A worker is settled by whichever step comes first, maybe before the application is loaded."""
    program = """
        import gc
        from penstock.spark.workers.worker import settle_worker

        settle_worker()
        first = gc.get_freeze_count()
        settle_worker()
        assert gc.get_freeze_count() == first
        import xml.etree.ElementTree, unittest.mock
        settle_worker()
        assert gc.get_freeze_count() > first + 500, (first, gc.get_freeze_count())
        assert len(gc.get_objects()) < 500, len(gc.get_objects())
    """
    subprocess.run([sys.executable, "-c", dedent(program)], check=True)
