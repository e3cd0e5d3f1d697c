"""The parts of a run loop."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.clock import Clock
from penstock.drain.driver.drain import Drain
from penstock.driver.feed.feed import Feed
from penstock.driver.feed.stop import StopRequest
from penstock.driver.guards.failures import Failures
from penstock.driver.guards.lease_gate import LeaseGate
from penstock.driver.loop.batch_runs import BatchRuns
from penstock.driver.loop.commits import Commits
from penstock.driver.loop.epochs import Epochs
from penstock.driver.loop.reporter import ProgressReporter
from penstock.driver.show.loss_report import LossReport
from penstock.driver.show.progress import ProgressBoard
from penstock.graph.topology import Topology
from penstock.tables.driver.run import Tables
from penstock.wire.ports import Fleet


@dataclass(frozen=True, slots=True)
class RunParts:
    """The parts of one run; `assembly.py` puts them together."""

    feed: Feed
    drain: Drain
    epochs: Epochs
    commits: Commits
    runs: BatchRuns
    fleet: Fleet
    failures: Failures
    gate: LeaseGate
    reporter: ProgressReporter
    losses: LossReport
    board: ProgressBoard
    tables: Tables
    stop: StopRequest
    topology: Topology
    clock: Clock
