"""The interface to the tables of a lake.

A commit to a table is one atomic step, in which rows and marks become valid together. Marks are of a writer's name and
a partition: the epoch that may write, and how far publishing is. A partition of an output is only a name here: the rows
of all partitions are in the same table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import pyarrow as pa

from penstock.errors import RetryableError
from penstock.system.contract.writer import WriterMark
from penstock.system.lake.log import TableLog


class ConflictError(RetryableError):
    """Another commit came first. Nothing was written; look at the table again."""


class LakeTable(ABC):
    """A table as it was when it was opened."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema: ...

    @property
    @abstractmethod
    def identity(self) -> str:
        """Tells the table from a later one of its name."""

    @property
    @abstractmethod
    def version(self) -> int:
        """The number of commits before the next one, or another number that grows with each commit."""

    @property
    @abstractmethod
    def partitions(self) -> int | None:
        """The number of partitions that was noted in the table; None if no job has written to it."""

    @abstractmethod
    def note_partitions(self, count: int) -> None:
        """Note the number of partitions. Raises ConflictError."""

    @abstractmethod
    def mark(self, writer: str, partition: int) -> WriterMark | None:
        """The marks of a writer's name; None if it has written nothing."""

    @abstractmethod
    def append(self, rows: pa.Table | None, writer: str, marks: Mapping[int, WriterMark]) -> None:
        """Append rows, and set the marks of partitions, in one step.

        Raises:
            ConflictError: a mark of one of these partitions was set since the table was opened.
            SystemAwayError: the place of the table does not answer; perhaps it has been written.
        """


class Lake(ABC):
    """The place of the tables. Plain data."""

    @abstractmethod
    def open(self, stream: str) -> LakeTable:
        """The table as it is now. Raises NotFoundError."""

    @abstractmethod
    def log(self, stream: str) -> TableLog:
        """The commits of a table. Nothing is opened here."""

    @abstractmethod
    def create(self, stream: str, schema: pa.Schema, partitions: int) -> bool:
        """Create a table; False if there is one."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names of all tables, ascending."""
