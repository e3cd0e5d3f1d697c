"""The pushed tables of a run: the version that each batch reads, and the loading of others beside the batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.api.side_inputs import PushedTable
from penstock.base.wording import listed
from penstock.driver.part import DriverPart, RunContext
from penstock.driver.show.metrics import JobMetrics
from penstock.errors import ContainerLostError, PenstockTimeoutError
from penstock.tables.manifest import PublishedTables, PublishedVersion, TableManifest
from penstock.tables.wing import LOAD_TABLE, TABLES, TABLES_WING, LoadTable, TableProgress, TableStatus
from penstock.wire.protocol import NoArguments

logger = logging.getLogger(__name__)
_LOOK_SECONDS = 0.2
_WAIT_SECONDS = 0.02
_LOG_SECONDS = 10.0
_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 2.0, 60.0
_NS = 1_000_000_000
LoadState: TypeAlias = Literal["loading", "loaded", "failed"]


@dataclass(frozen=True, slots=True)
class SwapFacts:
    """One table at a batch boundary. Versions are numbers."""

    wanted: int | None
    """The version that the table should have; None: none can be used."""
    pinned: bool = False
    current: int | None = None
    """The version that batches read, which every container has loaded in this epoch; None before the first one."""
    asked: int | None = None
    """The version that containers were asked for last in this epoch."""
    state: LoadState = "loading"
    """The state of `asked`: loaded once every container has it, failed if one has failed."""
    may_retry: bool = False


@dataclass(frozen=True, slots=True)
class Swap:
    """The decision at the boundary."""

    use: int | None
    load: int | None = None


def decide_swap(facts: SwapFacts) -> Swap:
    """Decide which version the next batch reads, and which one to load for later batches.

    A version that is loading when a newer one comes is used first: otherwise a table that is pushed again and again
    would never change. If somebody chose a version, no other one is waited for. Only a chosen version makes a table
    go back: it keeps a version in use that is not published any more.
    """
    current, asked, wanted = facts.current, facts.asked, facts.wanted
    if wanted is None or (current is not None and wanted < current and not facts.pinned):
        return Swap(current)
    if asked is None or not _is_meant(facts):
        return Swap(current, wanted)
    if facts.state == "loaded":
        return Swap(asked, wanted if asked == current and asked != wanted else None)
    if facts.state == "failed" and (facts.may_retry or asked != wanted):
        return Swap(current, wanted)
    return Swap(current)


def _is_meant(facts: SwapFacts) -> bool:
    asked, wanted = facts.asked, facts.wanted
    if asked == wanted:
        return True
    if facts.pinned or asked is None or wanted is None:
        return False
    return (facts.current or 0) <= asked < wanted


@dataclass(slots=True)
class _Table:
    """The driver's knowledge of one table."""

    name: str
    current: TableManifest | None = None
    """The version that batches read. Survives the end of an epoch."""
    is_loaded: bool = False
    """True if every container has loaded `current` in this epoch."""
    asked: TableManifest | None = None
    state: LoadState = "loading"
    asked_at: float = 0.0
    done_bytes: int = 0
    total_bytes: int = 0
    failure: str = ""
    failed_at: float = 0.0
    failures: int = 0
    note: str = ""

    def begin_epoch(self) -> None:
        self.is_loaded, self.asked, self.state = False, None, "loading"
        self.failure, self.failures = "", 0

    def wanted(self, published: PublishedVersion) -> tuple[TableManifest | None, bool]:
        """The version to have next, and True if no other one is waited for. An epoch begins with the version that
        was in use before it, unless that cannot be loaded any more."""
        if self.current is not None and not self.is_loaded and not self.failures:
            return self.current, True
        return published.manifest or self.current, published.pinned

    @property
    def retry_s(self) -> float:
        return min(_RETRY_SECONDS * 2.0 ** min(self.failures - 1, 10), _LONGEST_RETRY_SECONDS)

    @property
    def is_loading(self) -> bool:
        return self.asked is not None and self.state == "loading"

    @property
    def status(self) -> TableStatus:
        other = self.asked is not None and not (self.is_loaded and self.asked == self.current)
        return TableStatus(
            self.name,
            self.current.version if self.current is not None and self.is_loaded else None,
            self.asked.version if self.asked is not None and other else None,
            self.done_bytes,
            self.total_bytes,
            self.failure,
            self.note,
        )


class Tables(DriverPart):
    """Chooses the versions of tables at batch boundaries. Used by the run loop's thread, but for `needed`. Does
    nothing in a job without pushed tables."""

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        stores = run.job.topology.graph.stores
        self._tables = {spec.name: _Table(spec.name) for spec in stores if isinstance(spec.side, PushedTable)}
        self._needed: Mapping[str, frozenset[int]] = {}
        self._published: PublishedTables = run.tools[TABLES_WING.name](run.job, self.needed)
        self._fleet = run.fleet
        self._board = run.board
        self._timeout_s = run.job.config.side_inputs.bootstrap_timeout_ms / 1000
        self._stop = run.stop
        self._epoch = -1
        self._looked_at = 0.0
        self._versions: Mapping[str, int] = {}

    def needed(self, table: str) -> frozenset[int]:
        """The versions that containers read or load. May be called by any thread."""
        return self._needed.get(table, frozenset())

    def enter(self, epoch: int) -> None:
        """Begin an epoch: wait until every table has a version that all containers have loaded. A run that is asked
        to end meanwhile ends at once: nothing has been processed since its checkpoint.

        Raises:
            ContainerLostError: a container was lost meanwhile, or the run is to end.
            PenstockTimeoutError: a table has none in time; says which, and why.
        """
        self._epoch = epoch
        self._published.start()
        for table in self._tables.values():
            table.begin_epoch()
        if self._tables:
            with self._board.during("bootstrapping"):
                self._await(lambda table: table.is_loaded)

    def versions(self) -> Mapping[str, int]:
        """Note the versions that are loaded, and ask for the next ones. Never waits for a load. Raises
        ContainerLostError if a container does not answer."""
        if self._tables:
            self._look(_LOOK_SECONDS)
        return self._versions

    def close(self) -> None:
        self._published.close()

    def settle(self) -> None:
        """Wait until every table has the version that it should have. Raises as `enter`."""
        if self._tables:
            self._await(lambda table: table.is_loaded and table.current == self._wanted(table))

    def _wanted(self, table: _Table) -> TableManifest | None:
        return self._published.published(table.name).manifest or table.current

    def _await(self, is_ready: Callable[[_Table], bool]) -> None:
        began = logged = time.monotonic()
        while True:
            if self._fleet.any_lost:
                raise ContainerLostError(self._fleet.loss())
            self._look(0.0)
            waiting = [table for table in self._tables.values() if not is_ready(table)]
            if not waiting:
                return
            now = time.monotonic()
            if now - began > self._timeout_s:
                raise PenstockTimeoutError(self._too_late(waiting))
            if now - logged > _LOG_SECONDS:
                logged = now
                for table in waiting:
                    logger.info("table `%s`: %s", table.name, table.status)
            if self._stop.graceful.wait(_WAIT_SECONDS):
                self._stop.immediate.set()
                raise ContainerLostError("the run was asked to end before its pushed tables were loaded")

    def _too_late(self, waiting: Sequence[_Table]) -> str:
        reasons = listed([f"`{table.name}` ({_reason(table)})" for table in waiting])
        return (
            f"no version of {reasons} could be loaded within side.inputs.bootstrap.timeout.ms="
            f"{round(self._timeout_s * 1000)}. Nothing is processed without it: push a version, choose another one "
            "with `penstock table use`, or raise the timeout"
        )

    def _look(self, pause_s: float) -> None:
        now = time.monotonic()
        if any(table.is_loading for table in self._tables.values()) and now - self._looked_at >= pause_s:
            self._looked_at = now
            self._note(self._fleet.ask(TABLES, self._epoch, NoArguments()), now)
        for table in self._tables.values():
            self._advance(table, now)
        self._versions = {
            table.name: table.current.version
            for table in self._tables.values()
            if table.current is not None and table.is_loaded
        }
        self._needed = {table.name: _needed(table) for table in self._tables.values()}
        self._show(tuple(table.status for table in self._tables.values()))

    def _show(self, found: tuple[TableStatus, ...]) -> None:
        if found == self._board.wings.get(TABLES_WING.name):
            return
        self._board.tell(TABLES_WING.name, found)
        for each in found:
            self._metrics.table_stands(
                each.table, each.in_use or 0, each.loading or 0, each.percent, failing=bool(each.failure)
            )

    def _advance(self, table: _Table, now: float) -> None:
        published = self._published.published(table.name)
        table.note = published.note
        wanted, alone = table.wanted(published)
        by_number = {each.version: each for each in (table.current, table.asked, wanted) if each is not None}
        swap = decide_swap(
            SwapFacts(
                None if wanted is None else wanted.version,
                alone,
                table.current.version if table.current is not None and table.is_loaded else None,
                None if table.asked is None else table.asked.version,
                table.state,
                now - table.failed_at >= table.retry_s,
            )
        )
        if swap.use is not None:
            self._use(table, by_number[swap.use], now)
        if swap.load is not None:
            self._load(table, by_number[swap.load], now)

    def _use(self, table: _Table, manifest: TableManifest, now: float) -> None:
        if table.is_loaded and manifest == table.current:
            return
        before = table.current
        table.current, table.is_loaded, table.failure, table.failures = manifest, True, "", 0
        self._metrics.table_swapped(table.name, round((now - table.asked_at) * _NS))
        if before != manifest:
            logger.info(
                "table `%s` has version %d from the next batch on, made from %s of `%s` (%d rows)",
                *(table.name, manifest.version, manifest.source_version, manifest.source, manifest.rows),
            )

    def _load(self, table: _Table, manifest: TableManifest, now: float) -> None:
        in_use = table.current.version if table.current is not None and table.is_loaded else None
        table.asked, table.state, table.asked_at = manifest, "loading", now
        table.done_bytes = table.total_bytes = 0
        self._needed = {**self._needed, table.name: _needed(table)}
        self._fleet.ask(LOAD_TABLE, self._epoch, LoadTable(table.name, in_use, manifest.encode()))

    def _note(self, answers: Sequence[list[TableProgress]], now: float) -> None:
        for table in self._tables.values():
            if table.asked is None or not table.is_loading:
                continue
            number = table.asked.version
            found = [
                next((each for each in answer if (each.table, each.version) == (table.name, number)), None)
                for answer in answers
            ]
            known = [each for each in found if each is not None]
            table.done_bytes = sum(each.done_bytes for each in known)
            table.total_bytes = sum(each.total_bytes for each in known)
            failed = next((each for each in known if each.state == "failed"), None)
            if failed is not None:
                self._failed(table, failed, now)
            elif len(known) == len(found) and all(each.state == "loaded" for each in known):
                table.state = "loaded"

    def _failed(self, table: _Table, progress: TableProgress, now: float) -> None:
        table.state, table.failure, table.failed_at = "failed", progress.reason, now
        table.failures += 1
        self._metrics.table_failed(table.name)
        then = (
            f"batches continue with version {table.current.version}"
            if table.current is not None and table.is_loaded
            else "no batch runs before a version is loaded"
        )
        logger.error(
            "version %d of table `%s` was not loaded: %s. It is tried again in %.0f s; %s",
            *(progress.version, table.name, progress.reason, table.retry_s, then),
        )

    @property
    def _metrics(self) -> JobMetrics:
        return self._board.metrics


def _needed(table: _Table) -> frozenset[int]:
    return frozenset(each.version for each in (table.current, table.asked) if each is not None)


def _reason(table: _Table) -> str:
    if table.failure:
        return table.failure
    if table.asked is None:
        return table.note or "none was published"
    return f"version {table.asked.version} is loading: {table.done_bytes} of {table.total_bytes} bytes"
