"""An attempt's view of a store that is filled from the outside: one state of it, despite later writes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path

from penstock.state.engines.engine import Engine
from penstock.state.records import Changes


class SideView(Engine):
    """One state of a store, which does not change. Used by the threads of attempts."""

    @property
    @abstractmethod
    def version(self) -> tuple[int, int]:
        """Identifies the state: views of one content with equal versions show the same. The first number changes when
        the content is replaced as a whole; the second grows with each update."""

    @abstractmethod
    def changed_since(self, version: tuple[int, int]) -> Iterable[bytes] | None:
        """The keys that may have another value than in an earlier view; None if unknown: any key may."""

    @abstractmethod
    def release(self) -> None:
        """Release the state. Reading then raises EngineFailedError. Idempotent."""

    def apply(self, changes: Changes) -> None:
        raise AssertionError("a view is only read")

    def copy_to(self, directory: Path) -> None:
        raise AssertionError("a view is not copied")

    def close(self) -> None:
        self.release()
