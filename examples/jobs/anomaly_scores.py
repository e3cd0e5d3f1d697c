"""Scores readings of sensors by a model, a table that another program pushes, and reports the unusual ones.

The model is a folder of Parquet files, `models/sensors`, with the mean and the standard deviation of each sensor.
Publish readings to the stream `readings`, run the job, and read the streams `scores` and `anomalies`:

    penstock run examples/jobs/anomaly_scores.py:app
"""

from __future__ import annotations

import pyarrow as pa

import penstock as ps


def not_half_empty(version: ps.TableCandidate) -> bool:
    """A model with less than half of the sensors of the one before is a mistake."""
    return version.previous_rows is None or version.rows * 2 >= version.previous_rows


reading = ps.Columns(pa.schema({"sensor": pa.string(), "at_ms": pa.int64(), "value": pa.float64()}))
usual = ps.Columns(pa.schema({"mean": pa.float64(), "deviation": pa.float64()}))

app = ps.StreamApplication("anomaly-scores")
model = app.table(
    "model",
    value=usual,
    pushed=ps.PushedTable("models/sensors", key="sensor", value=("mean", "deviation"), check=not_half_empty),
)
scores = (
    app.input("local.readings", value=reading)
    .partition_by(ps.col("sensor"), id="by-sensor")
    .join_table(model, columns=["mean", "deviation"], id="with-model")
    .filter(ps.col("deviation") > 0, id="has-deviation")
    .select("sensor", "at_ms", "value", score=(ps.col("value") - ps.col("mean")) / ps.col("deviation"), id="score")
)
scores.send_to(app.output("local.scores"))
scores.filter((ps.col("score") > 4) | (ps.col("score") < -4), id="unusual").send_to(app.output("local.anomalies"))
