"""The batch of a streaming query that a job inside it has run last. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.checkpoint.sections import Section


@dataclass(frozen=True, slots=True)
class OfferedBatch:
    """The last batch that a streaming query has handed over to the job inside it."""

    plan: str = ""
    """Distinguishes it from other batches of its number: a query whose checkpoint location was set back plans them
    again. Empty: not known."""
    has_output: bool = True
    """True if the objects that the record names are its output."""
    schema: str = ""
    """Distinguishes the columns of its outputs from others. Empty: not known."""


@dataclass(frozen=True, slots=True)
class QuerySection:
    """The query that the job runs inside, at a checkpoint."""

    offered: OfferedBatch | None = None
    """Its last batch. None: the job runs by itself, or has seen no batch yet."""


QUERY = Section("query", QuerySection, needed=True)
