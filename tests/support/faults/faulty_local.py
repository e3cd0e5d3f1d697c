"""The local system, whose writers meet the faults of a job: `systems.local.samza.factory`."""

from __future__ import annotations

from collections.abc import Mapping
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


def _at(folder: str, step: str) -> None:
    Faults(Path(folder)).at(f"writer.{step}")
