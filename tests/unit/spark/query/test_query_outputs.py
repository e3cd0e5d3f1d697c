"""The output of a query's batch, as executors read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.secrets import RootKeys
from penstock.errors import NotFoundError
from penstock.outbox.wing import OutboxObject, OutputPart
from penstock.spark.query.rows import OutputRows

STREAM = SystemStream("spark", "totals")
SCHEMA = pa.schema([("n", pa.int64())])


class Nothing:
    def write(self, values: Sequence[bytes | None], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return iter(())


def test_rows_that_are_used_too_late_are_gone(tmp_path: Path) -> None:
    """Their object is deleted once the query has gone on to the next batch."""
    named = OutboxObject(
        "visits-1/outbox/1-2-0", 0, 10, "ab" * 32, {SystemStreamPartition("spark", "totals", 0): OutputPart(1, 1)}
    )
    rows = OutputRows(str(tmp_path), RootKeys(), 7, STREAM, SCHEMA, Nothing())
    asked = pa.RecordBatch.from_pydict({"id": [0]})
    with pytest.raises(
        NotFoundError, match=r"rows of batch 7 in output `totals` are gone.*in the handler.*`.cache\(\)`"
    ):
        list(rows.read([named], [asked]))
