"""The objects that a Python worker keeps out of the garbage collector's sight."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent


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
