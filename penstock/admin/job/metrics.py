"""A job's metrics and graph, from outside its process, and the parts of its status that come from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from penstock.admin.jobs import FoundJob
from penstock.errors import NotFoundError
from penstock.facts import Column
from penstock.job.shown_graph import JobGraph, graph_board
from penstock.job.shown_metrics import MetricsBoard, ShownRun
from penstock.metrics.snapshot import CounterValue, GaugeValue, Snapshot

_STORE, _LAG, _TABLES, _WAY = "store.", "side-inputs-lag-", "tables-", "batches-"


def run_of(job: FoundJob) -> ShownRun | None:
    """The metrics of the job's last run, with the moment at which they were those; None if no run has put any. Raises
    as `metrics_of`."""
    return MetricsBoard(job.objects, job.paths).get()


def metrics_of(job: FoundJob) -> Snapshot:
    """The metrics of a running job some seconds ago, or those at the end of its last run.

    Raises:
        NotFoundError: no run has put any yet.
        CorruptError: they cannot be read.
        IncompatibleError: a newer Penstock put them.
        RetryableError: the object store failed.
    """
    found = run_of(job)
    if found is None:
        raise NotFoundError(
            f"job {job.paths.root} has no metrics yet: a run writes them to the job's folder every ten seconds and "
            "when it ends"
        )
    return found.metrics


@dataclass(frozen=True, slots=True)
class SideInputStatus:
    """One partition of a side input of a store. For a store that every container has, this is the container that is
    furthest behind."""

    store: Annotated[str, Column("store")]
    partition: Annotated[str, Column("partition")]
    """`system.stream.partition`."""
    lag: Annotated[int, Column("lag", right=True, most_first=True)]
    """In offsets."""
    catching_up: Annotated[bool, Column("state", of=lambda each: each.state)]
    """True while the first batch waits for it."""
    failing: bool
    """True while it fails and is tried again; the store keeps its content meanwhile."""

    @property
    def state(self) -> str | None:
        """Its trouble, in words; None without any."""
        if self.failing:
            return "fails"
        return "the first batch waits for it" if self.catching_up else None


def side_inputs_in(metrics: Snapshot) -> tuple[SideInputStatus, ...]:
    gauges = {key: value.value for key, value in metrics.items() if isinstance(value, GaugeValue)}
    lags: dict[tuple[str, str], int] = {}
    states: dict[tuple[str, str], bool] = {}
    for key, value in gauges.items():
        store = key.group.removeprefix(_STORE)
        if key.group.startswith(_STORE) and key.name.startswith(_LAG):
            place = store, key.name.removeprefix(_LAG)
            lags[place] = max(int(value), lags.get(place, 0))
        elif key.name in {"side-inputs-catching-up", "side-inputs-failing"}:
            states[store, key.name] = states.get((store, key.name), False) or value > 0
    return tuple(
        SideInputStatus(
            store,
            partition,
            lag,
            states.get((store, "side-inputs-catching-up"), False),
            states.get((store, "side-inputs-failing"), False),
        )
        for (store, partition), lag in sorted(lags.items())
    )


@dataclass(frozen=True, slots=True)
class TableUse:
    """A pushed table as a run uses it."""

    table: Annotated[str, Column("table")]
    in_use: Annotated[int | None, Column("version", absent="none yet", right=True)]
    """The version that batches read; None before the first one."""
    loading: Annotated[int | None, Column("loading", of=lambda each: each.load)]
    """The version that containers load beside it."""
    percent: int
    """The loaded share of that version."""
    failing: bool
    """True while it cannot be loaded, and is tried again."""

    @property
    def load(self) -> str | None:
        """The version that is loaded, and its progress, in words; None if none is."""
        return None if self.loading is None else f"version {self.loading}, {self.percent} %"


def tables_in(metrics: Snapshot) -> tuple[TableUse, ...]:
    by_table: dict[str, dict[str, int]] = {}
    for key, value in metrics.items():
        if isinstance(value, GaugeValue) and key.group.startswith(_STORE) and key.name.startswith(_TABLES):
            own = by_table.setdefault(key.group.removeprefix(_STORE), {})
            own[key.name.removeprefix(_TABLES)] = int(value.value)
    return tuple(
        TableUse(
            table,
            own.get("version") or None,
            own.get("loading") or None,
            own.get("loading-percent", 0),
            own.get("failing", 0) > 0,
        )
        for table, own in sorted(by_table.items())
    )


def ways_in(metrics: Snapshot) -> Mapping[str, int]:
    """The batches of a run with a latency target by their way, named as `JobProgress.way`."""
    return {
        key.name.removeprefix(_WAY): value.count
        for key, value in sorted(metrics.items())
        if isinstance(value, CounterValue) and key.group == "job" and key.name.startswith(_WAY)
    }


def graph(job: FoundJob) -> JobGraph | None:
    """The stages of the job's last run, and what flows between them and the streams; None if no run has shown any.

    Args:
        job: the job.

    Raises:
        CorruptError: it cannot be read.
        IncompatibleError: a newer Penstock wrote it.
        RetryableError: the object store failed.

    Example:
        >>> with admin.open_job("flights") as job:  # doctest: +SKIP
        ...     [(each.source, each.target) for each in admin.graph(job).edges]
        [('local.trips', 0), (0, 1)]
    """
    return graph_board(job.objects, job.paths).get()
