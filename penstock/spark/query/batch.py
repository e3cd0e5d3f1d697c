"""A batch of a streaming query."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """A batch that the query asks for."""

    spark: SparkSession
    query: str
    """The id of the query, which its checkpoint location keeps."""
    number: int

    def is_active(self) -> bool:
        found = self.spark.streams.get(self.query)
        return found is not None and found.isActive

    def stop(self) -> None:
        """Stop the query, and wait for its end. From any thread but the query's."""
        found = self.spark.streams.get(self.query)
        if found is not None:
            found.stop()
