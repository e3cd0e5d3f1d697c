"""From a Delta table that another program appends to, through windows, into an Iceberg table."""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import NotFoundError
from penstock.system.base import OffsetRange
from penstock.system.lake.system import LakeSystem
from tests.support.processes.killed_runs import KilledRun
from tests.support.world.lake_tables import WrittenDelta
from tests.support.world.lake_world import lake_of, options_of, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]
HOUR = 3_600_000
ORDERS = pa.schema({"n": pa.int64(), "shop": pa.string(), "amount": pa.int64(), "at": pa.int64()})
TOTALS = "shop STRING, hour BIGINT, amount BIGINT, orders BIGINT"
APP = """
import penstock as ps

HOUR = 3_600_000
app = ps.StreamApplication("tables")
orders = app.input("shop.orders", timestamp=lambda order: order["at"])
hours = ps.Windows.tumbling("1h", aggregates={"amount": ps.Sum(lambda each: each["amount"]), "orders": ps.Count()})
totals = orders.partition_by(lambda order: order["shop"], id="by-shop").window(hours, id="hours")
totals.map(
    lambda pane: {"shop": pane.key, "hour": pane.window.start_ms // HOUR, **pane.message}
).send_to(app.output("lake.totals"))
"""


class Orders:
    """The table of orders, and the totals that follow from it."""

    def __init__(self, home: Path) -> None:
        self.table = WrittenDelta(home, ORDERS)
        self.sent: list[dict[str, Any]] = []

    def sell(self, first_hour: int, last_hour: int, commits: int) -> None:
        """Orders of these hours in the order of time, in so many commits; then one that closes the hours."""
        rng = random.Random(first_hour)
        times = sorted(rng.randrange(first_hour * HOUR, last_hour * HOUR) for _ in range(commits * 20))
        for commit in range(commits):
            new = [
                {"n": len(self.sent) + k, "shop": f"s{k % 3}", "amount": rng.randrange(100), "at": at}
                for k, at in enumerate(times[commit * 20 : commit * 20 + 20])
            ]
            self.table.append(new)
            self.sent += new
            if commit % 3 == 1:
                self.table.compact()

    def totals(self) -> Counter[tuple[str, int, int, int]]:
        amounts, orders = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
        for order in self.sent:
            amounts[order["shop"], order["at"] // HOUR] += order["amount"]
            orders[order["shop"], order["at"] // HOUR] += 1
        return Counter((*key, amounts[key], orders[key]) for key in orders)


def found(lake: LakeSystem) -> Counter[tuple[str, int, int, int]]:
    with suppress(NotFoundError):
        return Counter((row["shop"], row["hour"], row["amount"], row["orders"]) for row in rows_of(lake, "totals"))
    return Counter()


def test_every_order_is_in_one_total(tmp_path: Path) -> None:
    orders = Orders(tmp_path / "shop")
    place = tmp_path / "lake"
    shop = {"samza.factory": "delta", "partitions": "1", "poll.ms": "50", **options_of("delta", tmp_path / "shop")}
    lake = {"samza.factory": "iceberg", **options_of("iceberg", place, schema=TOTALS)}
    settings = {
        **{f"systems.shop.{key}": text for key, text in shop.items()},
        **{f"systems.lake.{key}": text for key, text in lake.items()},
        "streams.lake.totals.output.guarantee": "exactly-once",
    }
    job = KilledRun(tmp_path, APP, settings)
    written = lake_of("iceberg", place, schema=TOTALS)

    def comes_to_an_hour() -> bool:
        if not found(written):
            return False
        orders.sell(3, 4, 2)  # it reads or has read these when it is killed
        return True

    orders.sell(0, 3, 6)
    job.kill_once(comes_to_an_hour)
    orders.sell(4, 7, 6)
    job.run_to_the_end()
    totals = found(written)
    assert totals == orders.totals()
    assert read_all(written) == totals


def read_all(lake: LakeSystem) -> Counter[tuple[str, int, int, int]]:
    """The table that the job wrote, as the input of another job."""
    with closing(lake.admin()) as admin, closing(lake.reader()) as reader:
        ranges = [
            OffsetRange(SystemStreamPartition("lake", "totals", partition), ends.oldest, ends.upcoming)
            for partition, ends in admin.offsets("totals").items()
        ]
        messages = [message for each in ranges for chunk in reader.read(each, 100) for message in chunk]
    return Counter(tuple(json.loads(message[3] or b"").values()) for message in messages)
