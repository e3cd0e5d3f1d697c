"""Windows of a fixed number of messages."""

from __future__ import annotations

from typing import Any

from penstock.api.time.windows import Counting
from penstock.batch.batch import END_OF_TIME
from penstock.graph.specs import WindowSpec
from penstock.runtime.messages.columns import Target
from penstock.runtime.operators.base import StageContext
from penstock.runtime.windows.cells import Cell, WindowSlot, key_slot
from penstock.runtime.windows.node import WindowNode


class CountingNode(WindowNode):
    """Windows of a fixed number of messages, which fire with the last of them."""

    def __init__(self, spec: WindowSpec, stage: StageContext, downstream: Target, shape: Counting) -> None:
        super().__init__(spec, stage, downstream, shape)
        self._most = shape.messages
        self._open: dict[bytes | None, Cell] = {}

    def _take(self, key: bytes | None, value: Any, time_ms: int) -> bool:
        cell = self._open.get(key)
        if cell is None:
            slot = WindowSlot(END_OF_TIME, 0, key_slot(key))
            cell = self._open[key] = self._cells.load(slot) or self._cells.new(slot)
        self._add(cell, value, time_ms)
        if cell.messages >= self._most:
            self._cells.take_out(cell)
            del self._open[key]
            self._emit(key, None, cell.content, "on-time", cell.number)
        return True
