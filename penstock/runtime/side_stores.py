"""What a task's attempts need of the stores that are filled from the outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from penstock.batch.batch import Batch
from penstock.state.stores.view import SideView


class SideStores(Protocol):
    """The side stores of a container: those that side inputs fill, and pushed tables. Thread-safe."""

    def views(self, task: int, batch: Batch) -> Mapping[str, SideView]:
        """By store, the view for this run of this batch. All are taken at once, between two updates, when the first
        attempt of the task asks; the others of the same run get the same ones."""
        ...

    def release(self, task: int, batch: int) -> None:
        """The batches up to this one have ended: their views are not read any more."""
        ...


class NoSideStores:
    """Those of a job that has none."""

    def views(self, task: int, batch: Batch) -> Mapping[str, SideView]:
        return {}

    def release(self, task: int, batch: int) -> None:
        """Nothing to release."""


NO_SIDE_STORES = NoSideStores()
