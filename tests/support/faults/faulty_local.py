"""The local system, whose writers meet the faults of a job: `systems.local.samza.factory`."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from penstock.system.local import LocalSystem
from tests.support.faults.plan import Faults
from tests.support.streams.hooked_system import HookedSystem


class FaultyLocal(HookedSystem):
    """The points are `writer.begin`, `writer.append` and so on."""

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> FaultyLocal:
        path = options["path"]
        return cls(LocalSystem(name, path), partial(_at, str(Path(path).parent / "faults")))


class LockingLocal(FaultyLocal):
    """The same. The files of `totals` are locked at the point `writer.commit`, as they are within the commit."""

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> LockingLocal:
        path = Path(options["path"])
        return cls(LocalSystem(name, str(path)), partial(_at_locked, str(path.parent / "faults"), str(path / "totals")))


def _at(folder: str, step: str) -> None:
    Faults(Path(folder)).at(f"writer.{step}")


def _at_locked(folder: str, stream: str, step: str) -> None:
    with ExitStack() as locks:
        for file in Path(stream).glob("*.db") if step == "commit" else ():
            connection = locks.enter_context(closing(sqlite3.connect(file, timeout=30)))
            connection.execute("BEGIN IMMEDIATE")
        _at(folder, step)
