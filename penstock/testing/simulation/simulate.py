"""`simulate`: many lives of a user's job, with a report of what is broken."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from penstock.application.application import Application
from penstock.config.model import JobConfig
from penstock.errors import ConfigError
from penstock.testing.simulation.preparation import Inputs, Invariant, load_for_simulation, prepare
from penstock.testing.simulation.results import SimulationFailedError, SimulationReport
from penstock.testing.simulation.search import Search

_INVARIANTS_ALONE = (
    "invariants alone were checked: `--compare`, in a test `compare=True`, also compares each life with one without "
    "faults"
)


def simulate(
    app: Application,
    inputs: Inputs,
    *,
    seeds: int | Iterable[int] = 100,
    invariants: Sequence[Invariant] = (),
    config: Mapping[str, object] | None = None,
    partitions: int = 2,
    late: Sequence[str] = (),
    doubled: Sequence[str] = (),
    compare: bool | None = None,
    processes: int | None = None,
    limit_s: float = 60.0,
    network: bool = False,
) -> SimulationReport:
    """Run a job many times under faults, in simulated processes, and check what has to hold in the end.

    Each seed is a life of the job: it is killed, stopped and started again, loses containers, repeats attempts, and
    meets stores and streams that are slow or fail. The same seed is the same life. Every stream is a simulated one,
    whatever its system is, and so is the object store. The application's own code is real: it runs once for each
    attempt of each life. It does not reach the network, unless `network` is true. Files that it writes are written, and
    programs that it starts run.

    Without `invariants`, the outputs and stores of each life are compared with those of a life without faults. An
    output that is exactly once has the same messages as often; another has the same ones, and the same last value for
    each key. Lives without faults that differ among themselves show what the inputs alone do not decide, which is then
    not compared; `notes` of the report says so.

    Args:
        app: the application.
        inputs: by input, its messages: for each its value, or a tuple (key, value), as for `TestRunner.input`. Or a
            function that calls the methods `input` and `side_input` of what it gets, as those of a `TestRunner`.
        seeds: how many lives, or which seeds, each 1 or more.
        invariants: functions of inputs, outputs and stores. By stream, they get a list of `OutputMessage`; by store, a
            dict as of the last checkpoint. They raise an AssertionError, or return a text, if something does not hold.
        config: keys of the configuration.
        partitions: how many partitions each stream has.
        late: inputs whose messages may come later than others of their partition, and must make no difference.
        doubled: inputs whose messages may come twice, and must make no difference.
        compare: compare with a life without faults; by default if there are no `invariants`.
        processes: how many worker processes; by default one a core.
        limit_s: the most seconds that a life may take. One that takes longer is broken.
        network: the application's code may reach the network, again in each attempt.

    Returns:
        What was found, if everything holds.

    Raises:
        SimulationFailedError: something is broken. The error names the seed, the faults and the first difference.
        ConfigError: the application, its configuration or an input is wrong.

    Example:
        >>> from penstock.testing import simulate
        >>> class Count(ps.StreamTask):
        ...     def init(self, context):
        ...         self.flights = context.store("flights")
        ...
        ...     def process(self, envelope, collector, coordinator):
        ...         self.flights[envelope.key] = self.flights.get(envelope.key, 0) + 1
        >>> app = ps.TaskApplication("count", Count)
        >>> app.store("flights")
        >>> app.input("local.trips")
        >>> simulate(app, {"local.trips": [("N1", None), ("N2", None), ("N1", None)]}, seeds=2, processes=1).lives
        2
    """
    loaded = load_for_simulation(app, config=config)
    report = run_simulation(
        app,
        inputs,
        loaded,
        seeds=range(1, seeds + 1) if isinstance(seeds, int) else seeds,
        invariants=invariants,
        partitions=partitions,
        late=late,
        doubled=doubled,
        compare=compare,
        processes=processes,
        limit_s=limit_s,
        network=network,
    )
    if not report.holds:
        raise SimulationFailedError(report)
    return report


def run_simulation(
    app: Application,
    inputs: Inputs,
    config: JobConfig,
    *,
    seeds: Iterable[int],
    invariants: Sequence[Invariant] = (),
    partitions: int = 2,
    late: Sequence[str] = (),
    doubled: Sequence[str] = (),
    compare: bool | None = None,
    processes: int | None = None,
    limit_s: float = 60.0,
    network: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> SimulationReport:
    """As `simulate`, with a loaded configuration, and without the error. `tell` gets a line now and then."""
    began = time.monotonic()
    chosen = list(seeds)
    if not chosen or min(chosen) < 1:
        raise ConfigError("a simulation needs at least one seed, and each is a whole number of 1 or more")
    if importlib.util.find_spec("greenlet") is None:
        raise ConfigError("a simulation needs the package `greenlet`: pip install 'penstock-streams[testing]'")
    job, notes = prepare(app, inputs, config, partitions, late, doubled, invariants, compare, limit_s, network)
    with tempfile.TemporaryDirectory(prefix="penstock-simulate-") as folder:
        report = Search(job, Path(folder), tell).run(chosen, processes or os.cpu_count() or 1)
    report.notes[:0] = notes
    if report.holds and not job.compares and compare is None:
        report.notes.append(_INVARIANTS_ALONE)
    report.seconds = time.monotonic() - began
    return report
