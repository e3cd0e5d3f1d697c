"""The growth of a job's figures, and its limits."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ALLOWED: Mapping[str, float] = {
    "memory_bytes": 16 << 20,
    "threads": 20,
    "open_files": 20,
    "temporary": 10,
    "spark": 200,
    "job_root": 60,
    "local_state": 30,
}
"""The largest growth of each figure. A batch leaves a dozen of files of Spark's, which go when the JVM has collected
its garbage; files of the job root come and go with snapshots and retained checkpoints."""

ALLOWED_PER_BATCH: Mapping[str, float] = {"log_bytes": 100}
"""For figures that may grow, slowly."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of a figure of a kind of process or folder while `batches` batches ran."""

    kind: str
    figure: str
    early: float
    late: float
    batches: float

    @property
    def allowed(self) -> float:
        return ALLOWED.get(self.figure, ALLOWED_PER_BATCH.get(self.figure, 0.0) * self.batches)

    @property
    def too_much(self) -> bool:
        """True if it grew by more than it may."""
        return self.late - self.early > self.allowed

    def __str__(self) -> str:
        return (
            f"{self.figure} of {self.kind}: {_figure(self.figure, self.early)} -> {_figure(self.figure, self.late)} in "
            f"{self.batches:.0f} batches"
        )


def growth(samples: Sequence[Mapping[str, Any]]) -> list[Growth]:
    """The growth of all figures, from the earlier half of the samples to the later one. The first sample is warm-up."""
    counted = samples[1:]
    half = len(counted) // 2
    if half < 1:
        raise ValueError(f"{len(samples)} samples do not show growth, at least 3 do")
    early, late = counted[:half], counted[-half:]
    batches = _median(late, lambda s: s["batches"]) - _median(early, lambda s: s["batches"])
    return [
        Growth(
            kind,
            figure,
            _median(early, lambda s, k=kind, f=figure: s["figures"].get(k, {}).get(f, 0)),
            _median(late, lambda s, k=kind, f=figure: s["figures"].get(k, {}).get(f, 0)),
            batches,
        )
        for kind, figures in samples[-1]["figures"].items()
        for figure in figures
    ]


def _median(samples: Sequence[Mapping[str, Any]], value: Any) -> float:
    return float(statistics.median(value(sample) for sample in samples))


def _figure(name: str, value: float) -> str:
    return f"{value / 2**20:,.0f} MB" if name == "memory_bytes" else f"{value:,.0f}"
