"""Sets of versions, as runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.state.backends.base import StoreMarker
from penstock.state.backends.changelog_files.marker import ChangelogMarker


class Runs:
    """The versions that markers are made of: (store, task, epoch) -> runs (first, last), in order and disjoint."""

    def __init__(self, markers: Sequence[StoreMarker]) -> None:
        self.runs: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
        for own in markers:
            for epoch, first, last in ChangelogMarker.parse(own.marker).lineage:
                self.runs.setdefault((own.store, own.task, epoch), []).append((first, last))
        for place, runs in self.runs.items():
            merged: list[tuple[int, int]] = []
            for first, last in sorted(set(runs)):
                if merged and first <= merged[-1][1] + 1:
                    merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
                else:
                    merged.append((first, last))
            self.runs[place] = merged

    def uncovered(self, place: tuple[str, int, int], first: int, last: int) -> Iterator[int]:
        for start, end in self.runs.get(place, ()):
            yield from range(first, min(last + 1, start))
            first = max(first, end + 1)
        yield from range(first, last + 1)
