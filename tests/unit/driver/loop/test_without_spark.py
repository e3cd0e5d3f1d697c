"""A run needs no Spark below its two ports."""

from __future__ import annotations

import subprocess
import sys


def test_a_test_runner_loads_no_spark() -> None:
    code = "import sys, penstock.testing; print(sorted({m.split('.')[0] for m in sys.modules} & {'pyspark', 'py4j'}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
