"""An application whose events stay in columns through two exchanges: a BatchProcessor by key, and aggregates by region.

Events are those of `job_app`. `seq` counts the events of one key and source, so a single lost, doubled or reordered
event shows as `disorder`, even if sums agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa

import penstock as ps

EVENT = pa.schema(
    {"key": pa.string(), "region": pa.string(), "n": pa.int64(), "source": pa.string(), "seq": pa.int64()}
)
TOTAL = pa.schema({"count": pa.int64(), "sum": pa.int64(), "disorder": pa.int64()})


class KeyTotals(ps.BatchProcessor):
    """Keeps the totals of each key and source. Emits each event with the totals up to it."""

    def init(self, context: ps.BatchProcessorContext) -> None:
        self.totals = context.store("totals")

    def process(self, batch: ps.MessageBatch, collector: ps.BatchCollector) -> None:
        events: Any = pl.from_arrow(batch.values)
        events = events.with_columns(place=pl.format("{} {}", "key", "source"))
        places = events["place"].unique(maintain_order=True)
        before: Any = pl.from_arrow(self.totals.get_many(places))
        before = before.fill_null(0).with_columns(place=places)
        known = events.join(before, on="place", how="left", maintain_order="left")
        number = pl.int_range(pl.len()) + pl.col("count")
        totals = known.select(
            count=(number + 1).over("place"),
            sum=(pl.col("n").cum_sum() + pl.col("sum")).over("place"),
            disorder=((pl.col("seq") != number).cum_sum() + pl.col("disorder")).cast(pl.Int64).over("place"),
        )
        self.totals.put_many(events["place"], totals)
        collector.emit(events["place"], pl.concat([events.drop("place"), totals], how="horizontal"))


def columns_app() -> ps.StreamApplication:
    """events -> by key -> KeyTotals -> by region -> aggregate, both with a store and an output."""
    app = ps.StreamApplication("totals")
    app.store("totals", value=ps.Columns(TOTAL))
    events = app.input("local.events", value=ps.Columns(EVENT))
    totals = events.partition_by(ps.col("key"), id="by-key").process_batch(
        KeyTotals, stores=["totals"], schema=pa.schema([*EVENT, *TOTAL]), id="keys"
    )
    totals.select(*TOTAL.names, id="shown").send_to(app.output("local.totals"), id="totals-out")
    n = ps.col("n")
    regions = totals.partition_by(ps.col("region"), id="by-region").aggregate(
        {"count": ps.Count(), "sum": ps.Sum(n), "least": ps.Min(n), "mean": ps.Mean(n)}, id="regions"
    )
    regions.send_to(app.output("local.regions"), id="regions-out")
    return app


APPS: dict[str, Callable[[], ps.StreamApplication]] = {"columns": columns_app}
"""By the name that the driver's script gets."""
