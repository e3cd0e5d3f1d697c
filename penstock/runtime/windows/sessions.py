"""Windows that grow with the messages of a key."""

from __future__ import annotations

from typing import Any

from penstock.api.time.windows import Session
from penstock.graph.specs import WindowSpec
from penstock.runtime.messages.columns import Target
from penstock.runtime.operators.base import StageContext
from penstock.runtime.windows.cells import Cell, WindowSlot, key_slot
from penstock.runtime.windows.node import WindowNode


class SessionNode(WindowNode):
    """Windows that grow with the messages of a key."""

    def __init__(self, spec: WindowSpec, stage: StageContext, downstream: Target, shape: Session) -> None:
        super().__init__(spec, stage, downstream, shape)
        self._gap_ms = shape.gap_ms
        self._open: dict[bytes, list[Cell]] = {}

    def _take(self, key: bytes | None, value: Any, time_ms: int) -> bool:
        slot_key = key_slot(key)
        sessions = self._open.get(slot_key)
        if sessions is None:
            sessions = self._open[slot_key] = self._cells.sessions(slot_key)
        start, end = time_ms, time_ms + self._gap_ms
        met = [cell for cell in sessions if cell.slot.start < end and start < cell.slot.end]
        if met:
            start, end = min(start, met[0].slot.start), max(end, met[-1].slot.end)
        if self._too_late(end):
            return False
        slot = WindowSlot(end, start, slot_key)
        if len(met) == 1 and met[0].slot == slot:
            self._add(met[0], value, time_ms)
            return True
        cell = self._merged(slot, met)
        self._add(cell, value, time_ms)
        self._open[slot_key] = sorted([each for each in sessions if each not in met] + [cell], key=_start)
        return True

    def _merged(self, slot: WindowSlot, met: list[Cell]) -> Cell:
        # One that is due and has not fired yet, because too many were due, makes the whole session fire on time.
        complete = slot.end <= self._late_watermark and all(each.complete for each in met)
        cell = self._cells.new(slot, complete=complete)
        for number, each in enumerate(met):
            self._cells.take_out(each)
            cell.content = self._content.merge(cell.content, each.content) if number else each.content
            cell.messages += each.messages
            cell.number = max(cell.number, each.number)
            if each.since:
                cell.first_ms = min(cell.first_ms, each.first_ms) if cell.since else each.first_ms
                cell.last_ms = max(cell.last_ms, each.last_ms)
            cell.since += each.since
            cell.fired = cell.fired or (each.fired and each.complete == cell.complete)
        return cell

    def _store_open(self) -> None:
        for key, sessions in self._open.items():
            for cell in sessions:
                self._cells.save(cell, self._timer(cell))
            self._cells.save_sessions(key, sessions)
        self._open.clear()

    def _forget(self, cell: Cell) -> None:
        self._cells.forget_session(cell.slot)


def _start(cell: Cell) -> int:
    return cell.slot.start
