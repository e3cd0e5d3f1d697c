"""The event-time watermark of a query in Spark."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from penstock.batch.watermarks import GivenWatermark
from penstock.errors import IncompatibleError, PenstockError

_STATEFUL = "org.apache.spark.sql.execution.streaming.operators.stateful"


class SparkWatermark:
    """The watermark that a stateful operator of Spark would have at the end of a query's plan. It is asked for while
    Spark calls `foreachBatch`.

    Spark collects the event times at each `withWatermark` of the plan, whatever becomes of the rows behind it. After
    each batch it takes the lowest of these watermarks, or the highest (`spark.sql.streaming.multipleWatermarkPolicy`).
    It logs this watermark with the offsets of the next batch. Stateful operators in the plan may hold it back for what
    comes behind them.
    """

    def __init__(self, spark: SparkSession, query: str) -> None:
        running: Any = spark.streams.get(query)
        if running is None:
            raise PenstockError(f"the query {query} has ended")
        self._execution: Any = running._jsq.streamingQuery()  # noqa: SLF001
        jvm: Any = spark._jvm  # noqa: SLF001
        self._source = jvm.java.lang.Class.forName(f"{_STATEFUL}.EventTimeWatermarkExec")
        self._stateful = jvm.java.lang.Class.forName(f"{_STATEFUL}.StateStoreWriter")

    def of_batch(self) -> GivenWatermark:
        """As of the batch that Spark hands over."""
        last = self._execution.lastExecution()
        before = last.prevOffsetSeqMetadata()
        late = before.get().batchWatermarkMs() if before.isDefined() else 0
        plan, firing = last.executedPlan(), last.offsetSeqMetadata().batchWatermarkMs()
        return GivenWatermark(self._behind(plan, late), self._behind(plan, firing))

    def of_next(self) -> GivenWatermark:
        """As of the next batch. All rows of this batch have been read: Spark knows no other event times."""
        last = self._execution.lastExecution()
        plan, tracker = last.executedPlan(), self._execution.watermarkTracker()
        tracker.updateWatermark(plan)  # Spark does this once more when the handler has returned: only maxima count
        late = last.offsetSeqMetadata().batchWatermarkMs()
        return GivenWatermark(self._behind(plan, late), self._behind(plan, tracker.currentWatermark()))

    def _behind(self, plan: Any, watermark: int) -> int:
        found = self._output(plan, watermark)
        return max(0, watermark if found is None else found)  # an adaptive plan shows no operators, and has no state

    def _output(self, node: Any, watermark: int) -> int | None:
        """The watermark behind an operator; None: there is no `withWatermark` before it."""
        if self._source.isInstance(node):
            return watermark
        children = node.children()
        above = [self._output(children.apply(number), watermark) for number in range(children.size())]
        lowest = min((each for each in above if each is not None), default=None)
        if lowest is None or not self._stateful.isInstance(node):
            return lowest
        made = node.produceOutputWatermark(lowest)
        if not made.isDefined():
            raise IncompatibleError(
                f"rows have no watermark behind Spark's operator {node.nodeName()}, which comes before the processor: "
                "use another time mode, or begin a second query behind that operator"
            )
        found: int = made.get()
        return found
