"""The interface of stores whose values are rows of a schema."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.api.state.store import KeyValueStore

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.arrays.given import ColumnLike, RowsLike

K = TypeVar("K")


class ColumnStore(KeyValueStore[K, Any]):
    """A store whose values are rows of a schema, read and written by the thousand.
    `app.store(name, value=ps.Columns(...))` declares one.

    Keys are a column that fits the serde of the keys: text for `String`, integers for `Long`, and so on; none may be
    null. Columns are Arrow's, or those of Polars, pandas and NumPy; rows are Arrow's, or DataFrames. All calls of
    `KeyValueStore` work as well, with a dict for each row, and see the same entries.

    Example:
        >>> import pyarrow as pa
        >>> class Last(ps.BatchProcessor):
        ...     def init(self, context):
        ...         self.last: ps.ColumnStore[str] = context.store("last")
        ...
        ...     def process(self, batch, collector):
        ...         before = self.last.get_many(batch.keys)
        ...         self.last.put_many(batch.keys, batch.values)
        ...         collector.emit(batch.keys, before)
        >>> gate = ps.Columns(pa.schema({"gate": pa.string()}))
        >>> app = ps.StreamApplication("gates")
        >>> app.store("last", value=gate)
        >>> before = app.input("local.gates", value=gate).process_batch(Last, stores=["last"])
        >>> _ = before.send_to(app.output("local.before"))
        >>> runner = TestRunner(app).input("local.gates", [("UA1", {"gate": "A1"})]).run()
        >>> runner = runner.input("local.gates", [("UA1", {"gate": "B7"})]).run()
        >>> [message.value for message in runner.output("local.before")]
        [{'gate': None}, {'gate': 'A1'}]
    """

    @abstractmethod
    def get_many(self, keys: ColumnLike) -> pa.RecordBatch:
        """The rows of these keys, in their order; a key that is not there has nulls in all columns.

        Args:
            keys: may have the same key several times.

        Raises:
            SerdeError: a key is null, or does not fit the serde.
        """

    @abstractmethod
    def put_many(self, keys: ColumnLike, rows: RowsLike) -> None:
        """Store a row under each key. If a key occurs several times, the last row counts.

        Args:
            keys: one for each row.
            rows: with the columns of the store's schema, in any order.

        Raises:
            SerdeError: a key is null, or a key or a row does not fit.
        """

    @abstractmethod
    def delete_many(self, keys: ColumnLike) -> None:
        """Remove these keys. Nothing happens for those that are absent.

        Args:
            keys: the keys.

        Raises:
            SerdeError: a key is null, or does not fit the serde.
        """

    @abstractmethod
    def scan(self, rows: int = 65_536) -> Iterator[tuple[pa.Array, pa.RecordBatch]]:
        """Every entry, as (keys, rows), in no particular order, as they are now.

        Args:
            rows: the most rows in a batch.
        """
