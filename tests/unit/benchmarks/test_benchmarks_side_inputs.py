"""The parts of the benchmarks of side inputs and standbys, and small runs of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks import side_inputs, standby
from benchmarks.side_inputs import by_round, figures, percentile, stop_ms
from benchmarks.side_side_inputs import gaps, latencies, puts
from benchmarks.side_standby import VALUE_BYTES
from benchmarks.side_updates import by_partition, key_names
from benchmarks.standby import after_notice, ratios, summarise
from penstock.system.partitioner import partition_of


class TestSideInputs:
    def test_keys_are_in_the_partitions_of_the_partitioner(self) -> None:
        own = by_partition(key_names(100), 4)
        assert sorted(key for keys in own for key in keys) == key_names(100)
        for partition, keys in enumerate(own):
            assert {partition_of(key.encode(), 4) for key in keys} == {partition}

    def test_an_update_is_visible_with_the_first_sighting_of_it_or_a_later_one(self) -> None:
        looks = [(10.0, 1.0), (10.5, 3.0), (11.0, 3.0), (12.0, 4.0)]
        assert latencies([4.0, 2.0, 3.0], looks) == [8500.0, 7500.0, 8000.0]
        with pytest.raises(ValueError, match="never seen"):
            latencies([5.0], looks)

    def test_the_gap_at_a_swap_is_beside_the_usual_ones(self) -> None:
        firsts = [(0.0, 1.0), (0.1, 1.0), (0.2, 1.0), (0.4, 1.0), (0.9, 2.0), (1.1, 2.0)]
        found = gaps(firsts, quiet=0.0, pushed=0.3)
        assert {name: round(value) for name, value in found.items()} == {
            "usual_gap_ms": 100,
            "usual_most_ms": 100,
            "beside_gap_ms": 200,
            "beside_most_ms": 200,
            "swap_gap_ms": 500,
            "after_gap_ms": 200,
        }
        assert round(stop_ms(found)) == 400

    def test_what_is_compared_with_the_targets(self) -> None:
        rates = {"idle": [100, 200], "container": [90, 190], "spark": [50, 60]}
        part = {side: [{"messages_per_s": rate} for rate in own] for side, own in rates.items()}
        assert by_round(part, "messages_per_s", "container", "idle") == 0.925
        runs = {"container": [{"latencies_ms": [float(n) for n in range(100)]}]}
        found = figures({"throughput": part, "latency": runs})
        assert found["throughput, spark / idle"] == 0.4
        assert (found["latency, container, p50 ms"], found["latency, container, p99 ms"]) == (50, 99)
        assert percentile([3.0], 0.99) == 3.0

    @pytest.mark.parametrize("order", ["ascending", "random"])
    def test_rows_that_are_put_are_all_rows(self, tmp_path: Path, order: str) -> None:
        found = puts({"work": str(tmp_path), "rows": 200, "threads": 1, "batch": 1, "order": order})
        assert found["rows_per_s"] > 0

    @pytest.mark.parametrize("benchmark", [side_inputs, standby])
    def test_senseless_numbers_are_refused(self, capsys: pytest.CaptureFixture[str], benchmark: Any) -> None:
        with pytest.raises(SystemExit):
            benchmark.arguments(["--repeat", "0"])
        assert "must be" in capsys.readouterr().err


class TestStandby:
    ROUNDS = (
        {"noticed_ms": 10.0, "processed_ms": 110.0, "visible_ms": 120.0},
        {"noticed_ms": 20.0, "processed_ms": 320.0, "visible_ms": 330.0},
        {"noticed_ms": 30.0, "processed_ms": 230.0, "visible_ms": 240.0},
    )

    def test_the_median_and_the_slowest_count(self) -> None:
        found = summarise(self.ROUNDS)
        assert found["noticed_ms"] == {"median": 20, "most": 30}
        assert found["after_notice_ms"] == {"median": 200, "most": 300}

    def test_spark_is_counted_to_the_end_of_its_batch(self) -> None:
        assert after_notice({"noticed_ms": 100.0, "visible_ms": 900.0}) == 800
        assert after_notice({"noticed_ms": None, "visible_ms": 900.0}) is None
        sides = {"spark": summarise([{"noticed_ms": 1, "visible_ms": 960}]), "blob": summarise(self.ROUNDS)}
        assert sides["spark"]["processed_ms"] is None
        assert ratios(sides) == {"blob": 4.0}


@pytest.mark.spark
@pytest.mark.slow
class TestSmoke:
    def test_side_inputs(self, tmp_path: Path) -> None:
        path = tmp_path / "side_inputs.json"
        given = ["--rows", "5000", "--updates", "500", "--messages", "20000", "--messages-per-s", "200"]
        short = ["--seconds", "4", "--warm-up", "2", "--repeat", "1"]
        assert side_inputs.main([*given, *short, "--json", str(path)]) == 0
        result = orjson.loads(path.read_bytes())
        assert set(result["parts"]) == set(side_inputs.PARTS)
        assert all(value > 0 for name, value in result["figures"].items() if not name.startswith("swap"))

    def test_standby(self, tmp_path: Path) -> None:
        path = tmp_path / "standby.json"
        given = ["--megabytes", "5", "--repeat", "1", "--json", str(path)]
        assert standby.main(given) == 0
        sides = orjson.loads(path.read_bytes())["sides"]
        assert list(sides) == list(standby.SIDES)
        for side in sides.values():
            assert side["visible_ms"]["most"] > side["noticed_ms"]["most"] > 0
            assert side["state_bytes"] > 4 * 2**20 - VALUE_BYTES * 400
