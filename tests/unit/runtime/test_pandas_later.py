"""pandas is not loaded unless something asks for it, and pyarrow knows it from then on."""

from __future__ import annotations

import pytest

from tests.support.processes.python import run_python

pytest.importorskip("pandas")


def run(code: str) -> str:
    done = run_python("-c", code)
    return done.stdout.strip()


def test_arrow_works_without_pandas() -> None:
    code = """
import sys
from penstock.host.process import keep_pandas_out
keep_pandas_out()
import pyarrow as pa, pyarrow.compute as pc
assert pc.sum(pa.array([1, 2])).as_py() == 3
assert pa.table({"a": ["x"]}).to_pylist() == [{"a": "x"}]
print("pandas" in sys.modules)
"""
    assert run(code) == "False"


@pytest.mark.few(1)
@pytest.mark.parametrize("how", ["import pandas", "from pandas import Series", "pa.table({'a': [1]}).to_pandas()"])
def test_pandas_is_known_to_arrow_once_it_is_imported(how: str) -> None:
    code = f"""
import sys
from penstock.host.process import keep_pandas_out
keep_pandas_out()
import pyarrow as pa
{how}
import pandas
print(pa.array(pandas.Series([1.0, float("nan")])).null_count, pa.Table.from_pandas(pandas.DataFrame({{"a": [1]}})))
"""
    assert run(code).startswith("1 pyarrow.Table")


def test_pandas_that_is_there_already_stays() -> None:
    code = """
import pandas, sys
from penstock.host.process import keep_pandas_out
keep_pandas_out()
import pyarrow as pa
print(pa.array(pandas.Series([1.0, float("nan")])).null_count, sys.modules["pandas"] is pandas)
"""
    assert run(code) == "1 True"


def test_no_process_of_a_job_loads_pandas() -> None:
    code = """
import sys
for module in ("penstock.container.__main__", "penstock.spark.workers.worker", "penstock.spark.job"):
    __import__(module)
    assert "pandas" not in sys.modules, module
"""
    assert not run(code)
