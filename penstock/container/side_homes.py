"""Where the content of side stores is on a host."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

from penstock.config.model import JobConfig
from penstock.side.group import Ends
from penstock.side.parts import Part
from penstock.state.engines.open import open_engine
from penstock.state.side.engine import SideEngine
from penstock.state.side.positions import Positions


class SideHomes:
    """The folders of the side stores of one container in one epoch."""

    def __init__(self, config: JobConfig, base: Path, container: str, epoch: int) -> None:
        self._config = config
        self._base = base
        self._name = f"{epoch}-{container}"

    def home(self, part: Part) -> SideHome:
        """That of one part."""
        own = "all" if part.task is None else str(part.task)
        return SideHome(self._config, part, self._base / part.spec.name / f"side-{own}" / self._name)

    def rebuild_reason(self, part: Part, positions: Positions, ends: Ends) -> str | None:
        """Why what is in the folder cannot be continued; None if it can."""
        return "it is of another epoch"

    def fingerprint(self, part: Part) -> str:
        """What makes the content, besides the messages."""
        return ""


class SideHome:
    """The folders of one part."""

    def __init__(self, config: JobConfig, part: Part, folder: Path) -> None:
        self._config = config
        self._part = part
        self._folder = folder
        self._numbers = count(1)

    def open(self) -> SideEngine:
        """What is there, or an empty engine."""
        return self.fresh()

    def fresh(self) -> SideEngine:
        """An empty engine beside the one that is open."""
        directory = self._folder / str(next(self._numbers))
        shutil.rmtree(directory, ignore_errors=True)
        engine = open_engine(self._config.store(self._part.spec.name), directory)
        return SideEngine(engine, str(directory))  # type: ignore[arg-type]
