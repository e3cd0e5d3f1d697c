"""The soak: one job runs many small batches, and nothing that its processes hold may grow.

The job has two stages with a store each, two exchanges and an output, and commits after every batch. After every
`--step-batches` batches it is idle for a moment, and a sample is taken of all its processes (memory, threads, open
files) and folders (temporary files, log, job root, local state). What the median of the later half of the samples
has more than that of the earlier half, the first sample left out, is growth. More of it than ALLOWED makes the exit
status 1.

    python -m benchmarks.soak [--steps N] [--step-batches N] [--batch-messages N] [--message-bytes N] [--json PATH]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import (
    RESULTS,
    console,
    describe_machine,
    end_on_sigterm,
    machine,
    megabytes,
    print_table,
    run_facts,
    run_side,
    write_json,
)

ALLOWED: Mapping[str, float] = {
    "memory_bytes": 16 << 20,
    "threads": 20,
    "open_files": 20,
    "temporary": 10,
    "spark": 200,
    "job_root": 60,
    "local_state": 30,
}
"""How much of each figure may be added. A batch leaves a dozen of files of Spark's, which go when the JVM has collected
its garbage; files of the job root come and go with snapshots and retained checkpoints."""

ALLOWED_PER_BATCH: Mapping[str, float] = {"log_bytes": 100}
"""For figures that may grow, slowly."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How much a figure of a kind of process or folder grew while `batches` batches ran."""

    kind: str
    figure: str
    early: float
    late: float
    batches: float

    @property
    def allowed(self) -> float:
        """How much it may be."""
        return ALLOWED.get(self.figure, ALLOWED_PER_BATCH.get(self.figure, 0.0) * self.batches)

    @property
    def too_much(self) -> bool:
        """Whether it is more."""
        return self.late - self.early > self.allowed

    def __str__(self) -> str:
        return (
            f"{self.figure} of {self.kind}: {_figure(self.figure, self.early)} -> {_figure(self.figure, self.late)} in "
            f"{self.batches:.0f} batches"
        )


def growth(samples: Sequence[Mapping[str, Any]]) -> list[Growth]:
    """Of every figure, from the earlier half of the samples to the later one; the first sample is warm-up."""
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
    return megabytes(value) if name == "memory_bytes" else f"{value:,.0f}"


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=40, help="samples; at least 3")
    parser.add_argument("--step-batches", type=int, default=100, help="batches before each sample")
    parser.add_argument("--batch-messages", type=int, default=200)
    parser.add_argument("--message-bytes", type=int, default=4000)
    parser.add_argument("--json", type=Path, default=RESULTS / "soak.json")
    options = parser.parse_args(given)
    if options.steps < 3 or min(options.step_batches, options.batch_messages) < 1:
        parser.error("at least 3 steps of at least one batch of at least one message are needed")
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Run it, print what grew, write the JSON. Returns the exit status."""
    options = arguments(given)
    parameters = {
        "batch_messages": options.batch_messages,
        "message_bytes": options.message_bytes,
        "steps": options.steps,
        "step_batches": options.step_batches,
    }
    end_on_sigterm()
    facts = machine()
    console.print(describe_machine(facts))
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        work = Path(name)
        with console.status(f"{options.steps * options.step_batches:,} batches"):
            run = run_side("benchmarks.side_soak:soak", {"work": str(work), **parameters}, work, timeout_s=86_400)
    samples = run.result["samples"]
    found = growth(samples)
    batches = samples[-1]["batches"]
    print_table(
        f"soak: {batches:,} batches of {options.batch_messages} messages of {options.message_bytes} bytes",
        ("of", "figure", "earlier", "later", "allowed", ""),
        [
            (
                g.kind,
                g.figure,
                _figure(g.figure, g.early),
                _figure(g.figure, g.late),
                f"+ {_figure(g.figure, g.allowed)}",
                "GREW" if g.too_much else "",
            )
            for g in found
        ],
    )
    result = {
        "benchmark": "soak",
        "machine": facts,
        "parameters": parameters,
        "growth": [{**asdict(g), "allowed": g.allowed, "too_much": g.too_much} for g in found],
        "samples": samples,
        **run_facts(run),
    }
    write_json(options.json, result)
    return 1 if any(g.too_much for g in found) else 0


if __name__ == "__main__":
    sys.exit(main())
