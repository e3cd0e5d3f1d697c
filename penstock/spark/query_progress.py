"""Adds Penstock's state to Spark's progress of a query. Spark makes its events from its own operators alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from pyspark.sql.streaming.listener import StateOperatorProgress, StreamingQueryProgress

from penstock.driver.show.progress import camel
from penstock.driver.show.state_progress import StateOperatorProgress as Found

_KEPT = 1_000
"""Batches of all queries of the program. A listener hears of a batch shortly after its end."""
_lock = threading.Lock()
_batches: dict[tuple[str, int], Sequence[Found]] = {}


def note_state(query: str, batch: int, found: Sequence[Found]) -> None:
    """Remember a batch's changes to Penstock's state.

    Args:
        query: the query's id.
        batch: its number, as Spark counts.
    """
    with _lock:
        _batches[query, batch] = found
        while len(_batches) > _KEPT:
            del _batches[next(iter(_batches))]


def state_operators(progress: StreamingQueryProgress) -> list[StateOperatorProgress]:
    """The operators of a job inside a query, and a batch's changes to their state. Spark's own `stateOperators` do not
    have them.

    Args:
        progress: of a query of this program: `event.progress` of a listener, or an entry of `recentProgress`. Of the
            last 1,000 batches, those are known that this program processed.

    Returns:
        An empty list if nothing is known of the batch, or nothing in it has state. A number that is not known is None.

    Example:
        >>> class Dashboard(StreamingQueryListener):  # doctest: +SKIP
        ...     def onQueryProgress(self, event):
        ...         for operator in pss.state_operators(event.progress):
        ...             print(operator.operatorName, operator.numRowsUpdated)
    """
    with _lock:
        found = _batches.get((str(progress.id), progress.batchId), ())
    return [_as_spark(each) for each in found]


def with_state(progress: StreamingQueryProgress) -> StreamingQueryProgress:
    """Add Penstock's operators to Spark's progress of a batch, and to its text and JSON.

    Args:
        progress: as Spark made it. It is changed.
    """
    if not (own := state_operators(progress)):
        return progress
    document = json.loads(progress.json)
    document["stateOperators"] = [*document["stateOperators"], *own]
    progress["stateOperators"] = [*progress.stateOperators, *own]
    # Spark's text comes from these two: from its own object, if there is one, else from the document.
    progress._jprogress, progress._jdict = None, document  # noqa: SLF001
    return progress


def _as_spark(found: Found) -> StateOperatorProgress:
    values: dict[str, Any] = {camel(field.name): getattr(found, field.name) for field in fields(found)}
    values["customMetrics"] = dict(found.custom_metrics)
    return StateOperatorProgress.fromJson(values)  # has a text; one that is made of its fields has none
