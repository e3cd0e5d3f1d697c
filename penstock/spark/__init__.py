"""Penstock for programs that are written for PySpark: `import penstock.spark as pss`. No other room imports it."""

from typing import TYPE_CHECKING

from penstock.base import lazy_names

if TYPE_CHECKING:
    from penstock.spark.applications import ApplicationStream as ApplicationStream
    from penstock.spark.applications import run_application as run_application
    from penstock.spark.processor.columns import ColumnsProcessor as ColumnsProcessor
    from penstock.spark.processor.columns import ColumnState as ColumnState
    from penstock.spark.processor.columns import ProcessorBatch as ProcessorBatch
    from penstock.spark.queries import state_operators as state_operators
    from penstock.spark.row_batches import arrow_schema as arrow_schema
    from penstock.spark.row_serde import Rows as Rows
    from penstock.spark.state_frames import read_changes as read_changes
    from penstock.spark.state_frames import read_state as read_state
    from penstock.spark.transform import TransformedStream as TransformedStream
    from penstock.spark.transform import transform_with_state as transform_with_state
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)


del TYPE_CHECKING, lazy_names
