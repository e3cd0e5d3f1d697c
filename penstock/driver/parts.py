"""What a run loop is made of."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.clock import Clock
from penstock.driver.batch_runs import BatchRuns
from penstock.driver.commits import Commits
from penstock.driver.drain import Drain
from penstock.driver.epochs import Epochs
from penstock.driver.failures import Failures
from penstock.driver.feed import Feed
from penstock.driver.lease_gate import LeaseGate
from penstock.driver.loss_report import LossReport
from penstock.driver.ports import Fleet
from penstock.driver.progress import ProgressBoard
from penstock.driver.reporter import ProgressReporter
from penstock.driver.stop import StopRequest
from penstock.driver.tables import Tables
from penstock.runtime.topology import Topology


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
