"""`kill -9` of the driver and of containers of a job whose messages and state are in columns: all totals are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.admin.state.serdes import store_serdes
from penstock.checkpoint.record import CheckpointRecord
from penstock.state.reading.reader import read_store
from tests.support.faults.chaos import chaos
from tests.support.jobs.home import DriverProcess, Home, Totals

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MESSAGES = 4000
STORES = {"totals": "totals", "regions": "regions.aggregate"}


class ColumnHome(Home):
    """The job of `columns_app`, whose totals a plain loop computes."""

    def stored(self, store: str, record: CheckpointRecord | None = None) -> Totals:
        record = record or self.checkpoints[-1]
        serde = store_serdes(record, STORES[store]).value
        assert serde is not None
        found = list(read_store(self.loaded(), STORES[store], record))
        values = {key.decode(): serde.from_bytes(value) for _, key, value in found}
        assert len(values) == len(found), f"a key of store {store} is in two tasks"
        return values if store == "totals" else {key: result(state) for key, state in values.items()}

    def expected(self, record: CheckpointRecord | None = None) -> tuple[Totals, Totals]:
        by_key: Totals = {}
        numbers: dict[str, list[int]] = {}
        for event in self.events_until(record):
            total = by_key.setdefault(f"{event['key']} {event['source']}", {"count": 0, "sum": 0, "disorder": 0})
            total["count"] += 1
            total["sum"] += event["n"]
            numbers.setdefault(event["region"], []).append(event["n"])
        by_region = {
            region: {"count": len(of), "sum": sum(of), "least": min(of), "mean": sum(of) / len(of)}
            for region, of in numbers.items()
        }
        return by_key, by_region


def result(state: dict[str, Any]) -> dict[str, Any]:
    """The aggregates of a stored state."""
    mean = state["mean"]
    plain = {"count": state["count"]["n"], "sum": state["sum"]["sum"], "least": state["least"]["value"]}
    return {**plain, "mean": mean["sum"] / mean["n"]}


CONFIGS: dict[str, dict[str, Any]] = {
    "in columns": {},
    "in RocksDB": {f"stores.{store}.factory": "rocksdb" for store in STORES.values()},
    "both ways": {"test.ways.alternate": True, "job.latency.target.ms": 50, "job.batch.max.messages": 40},
}


@pytest.mark.parametrize(("seed", "config"), list(enumerate(CONFIGS.values())), ids=list(CONFIGS))
def test_the_driver_and_containers_are_killed_in_turn(tmp_path: Path, seed: int, config: dict[str, Any]) -> None:
    home = ColumnHome(tmp_path)
    home.publish(MESSAGES, seed=7)
    with chaos(home, seed, app="columns", **config) as attack:
        attack.start()
        struck = 0
        for number, moment in enumerate(attack.moments(6, MESSAGES)):
            assert attack.await_moment(moment)
            if number % 2:
                struck += attack.strike(DriverProcess.containers, "container")
            elif attack.driver is not None:
                attack.told.append(f"kill the driver {attack.driver.pid} after {home.length('totals')} messages")
                attack.driver.kill()
                attack.start()
        attack.finish()
        assert struck == 3
    assert len(home.log.claims) >= 4, "each killed driver is followed by a new epoch"
