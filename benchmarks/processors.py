"""The processors of the benchmark of queries. Both engines run these classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from benchmarks.queries import Stateful

GAP_MS = 90_000
"""A session ends after so long without an event."""
LAST = 10
TOTALS = "key string, count long, sum double"
SESSIONS = "key string, first long, last long, n long"


class LastTen(Stateful):
    """The ten latest amounts, in a list."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.latest = handle.getListState("latest", "time long, amount double")

    def keep(self, more: Iterable[tuple[int, float]]) -> tuple[int, float]:
        """Put these among the latest ones. Returns how many those are now, and their sum."""
        found = [*map(tuple, self.latest.get()), *more]
        found.sort()
        del found[:-LAST]
        self.latest.put(found)
        return len(found), float(sum(amount for _, amount in found))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        count, total = self.keep((row.time, row.amount) for row in rows)
        yield Row(key=key[0], count=count, sum=total)


class PandasLastTen(LastTen):
    """The same with DataFrames of pandas."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        count, total = self.keep(pair for frame in rows for pair in zip(frame["time"], frame["amount"], strict=True))
        yield pd.DataFrame({"key": [key[0]], "count": [count], "sum": [total]})


class Sessions(Stateful):
    """Sessions in event time, each with a timer that ends it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.open = handle.getValueState("open", "first long, last long, n long")

    def extend(self, times: Iterable[int]) -> Iterator[tuple[int, int, int]]:
        """Put events into sessions. Yields the sessions that ended before the last one."""
        session = self.open.get()
        before = None if session is None else session[1] + GAP_MS
        for at in sorted(times):
            if session is not None and at - session[1] >= GAP_MS:
                yield session
                session = None
            session = (at, at, 1) if session is None else (session[0], at, session[2] + 1)
        if session is not None:
            self.open.update(session)
            if before is not None:
                self.handle.deleteTimer(before)
            self.handle.registerTimer(session[1] + GAP_MS)

    def end(self) -> Iterator[tuple[int, int, int]]:
        """End the open session. Yields it, if there is one."""
        session = self.open.get()
        if session is not None:
            self.open.clear()
            yield session

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for first, last, n in self.extend(row.time for row in rows):
            yield Row(key=key[0], first=first, last=last, n=n)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        for first, last, n in self.end():
            yield Row(key=key[0], first=first, last=last, n=n)


class PandasSessions(Sessions):
    """The same with DataFrames of pandas."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        return _frames(key, self.extend(at for frame in rows for at in frame["time"]))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
        return _frames(key, self.end())


def _frames(key: Any, sessions: Iterator[tuple[int, int, int]]) -> Iterator[Any]:
    for first, last, n in sessions:
        yield pd.DataFrame({"key": [key[0]], "first": [first], "last": [last], "n": [n]})
