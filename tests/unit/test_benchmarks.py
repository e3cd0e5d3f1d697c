"""Each benchmark at its smallest size: its sides run, their results are right, and its file of results is written."""

from __future__ import annotations

import importlib
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks import large_state, scale
from tests.support.tools.places import ROOT

FOLD = "--events 400 --batches 4 --keys 20"
KAFKA = "--sides penstock --events 40000 --keys 500 --seconds 1 --warm-up-s 1 --commit-s 1 --before-kill-s 1 --repeat 1"
QUICK = {
    "commit": "--megabytes 2 --small-megabytes 1 --changed 50 --commits 4 --sides deltas",
    "large_state": "--gigabytes 1 --reserve-gigabytes 1 --tasks 2 --gets 5",
    "metrics": "--repeat 1 --times 10",
    "restore": "--megabytes 1 --deltas 0 2 --changed 100 --repeat 1 --sides changelog-files",
    "scans": "--messages 50 --waiting 10 --repeat 1",
    "ticks": "--stores 1 3 --entries 3000 --limit-ms 60000",
    "snapshot": "--sizes 50 --changed 50 --repeat 2 --backends blob",
}
ON_SPARK = {
    "async_commit": "--events 4000 --batches 10 --keys 50 --commit-ms 1 --latency-ms 20 --repeat 1",
    "columns": (
        "--events 1600 --batches 4 --keys 50 --repeat 1 --sides 'aggregate, parquet' "
        "'aggregate in RocksDB, parquet' 'aggregate, json' 'process_batch, parquet' 'Spark aggregation, parquet' "
        "'Spark aggregation, json' 'transformWithStateInPandas, parquet' 'polars, parquet'"
    ),
    "commit": "--megabytes 2 --small-megabytes 1 --changed 50 500 --commits 4 --spark-commits 4",
    "deploy": "--count 2 --rate 100 --keys 20 --commit-ms 300",
    "floor": "--batches 2 --exchanges 2",
    "formats": f"{FOLD} --repeat 1",
    "keyed_fold": f"{FOLD} --repeat 1",
    "pyspark": "--kinds fold sessions-pandas --batches 3 --rows 400 --keys 20 --small 2",
    "repartition": "--megabytes 2 --before 2 --after 3 --sampled 20",
    "restore": "--megabytes 1 --deltas 0 2 --changed 100 --repeat 2",
    "side_inputs": (
        "--rows 5000 --updates 500 --messages 20000 --messages-per-s 200 --seconds 4 --warm-up 2 --repeat 1"
    ),
    "soak": "--steps 3 --step-batches 3 --message-bytes 10",
    "standby": "--megabytes 5 --repeat 1",
    "start": "--repeat 1",
    "tls": f"{FOLD} --floor-batches 2 --repeat 1",
    "windows": "--events 4000 --batches 8 --keys 20",
}
ON_BROKER = {
    "kafka.__main__": f"{KAFKA} --rates 200 --latency-s 2 --latency-commit-s 1",
    "kafka_width": (
        "--partitions 3 --ways direct --outputs output --backlog 1000 --seconds 3 --batches 8 --commit-s 1"
    ),
}
SLOW = [pytest.mark.spark, pytest.mark.slow]
CASES = [
    *(pytest.param(*case, id=case[0]) for case in QUICK.items()),
    *(pytest.param(*case, marks=SLOW, id=f"{case[0]} on Spark") for case in ON_SPARK.items()),
    *(pytest.param(*case, marks=[*SLOW, pytest.mark.kafka], id=case[0]) for case in ON_BROKER.items()),
]


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gigabyte is the smallest state of `large_state`: here it has a megabyte."""
    monkeypatch.setattr(large_state, "_GB", 1 << 20)


def test_the_figures_of_the_page_on_scale_are_replaced(tmp_path: Path) -> None:
    page = tmp_path / "scale.md"
    text = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    page.write_text(text, encoding="utf-8")
    assert (
        scale.main(["--tasks", "10", "--containers", "2", "--commits", "40", "--days", "2", "--page", str(page)]) == 0
    )
    found = page.read_text(encoding="utf-8")
    assert "10 tasks in 2 containers" in found
    outside = [each.partition(scale.BEGIN)[0] + each.partition(scale.END_MARK)[2] for each in (text, found)]
    assert outside[0] == outside[1]


@pytest.mark.few(1)
@pytest.mark.parametrize(("benchmark", "arguments"), CASES)
def test_a_benchmark_runs(benchmark: Any, arguments: str, tmp_path: Path) -> None:
    main = importlib.import_module(f"benchmarks.{benchmark}").main
    path = tmp_path / "result.json"
    status = main([*shlex.split(arguments), "--json", str(path)])
    found = [orjson.loads(each.read_bytes()) for each in tmp_path.glob("*.json")]
    assert found
    for result in found:
        assert status == 0, result
        assert result["machine"]["cores"] > 0
        assert all(side["rounds"] for side in result["sides"].values())
        assert result["sides"] or result["parts"]
