"""The stores of a `TestRunner` that its job only reads."""

from __future__ import annotations

from penstock.api.ssp import SystemStream
from penstock.api.state.side_inputs import PushedTable
from penstock.container.epoch.epoch import Epoch
from penstock.errors import ConfigError, PenstockTimeoutError
from penstock.graph.serde_failures import side_input_place
from penstock.graph.specs import ApplicationGraph
from penstock.graph.stores import SideInputs, StoreSpec
from penstock.side.container.inputs import SideInputService
from penstock.state.engines.engine import Content
from penstock.tables.container.loaded import PushedTables
from penstock.tables.driver.run import Tables
from penstock.testing.in_process import InProcessDriver
from penstock.testing.runner.pushed_tables import TablesInProcess
from penstock.testing.runner.streams import StreamOfTest

_SIDE_INPUTS_S = 60.0


def side_stream(graph: ApplicationGraph, stream: str) -> StreamOfTest:
    """A side input of the application.

    Raises:
        ConfigError: no store has it.
    """
    name = SystemStream.parse(stream)
    sides = [spec.side for spec in graph.side_stores if isinstance(spec.side, SideInputs)]
    found = next((each for side in sides for each in side.streams if each.stream == name), None)
    if found is None:
        raise ConfigError(f"`{stream}` is not a side input of a store of application `{graph.name}`")
    return StreamOfTest(name, side_input_place(name), found.key_serde, found.value_serde)


def check_pushed(graph: ApplicationGraph, tables: TablesInProcess) -> None:
    """Raise ConfigError if a pushed table has no version: no batch runs before each has one."""
    for spec in graph.side_stores:
        if isinstance(spec.side, PushedTable) and tables.published(spec.name).manifest is None:
            raise ConfigError(
                f"table `{spec.name}` has no version: call push({spec.name!r}, rows) before the first run()"
            )


def catch_up(driver: InProcessDriver, graph: ApplicationGraph) -> None:
    """Wait until stores have all messages of their side inputs.

    Raises:
        PenstockTimeoutError: they do not get there.
    """
    if not any(isinstance(spec.side, SideInputs) for spec in graph.side_stores):
        return
    for task in range(driver.job.settings.tasks):
        service = _epoch(driver, task).wings.of(SideInputService)
        if not service.catch_up(_SIDE_INPUTS_S) and service.failure is None:  # a failure ends the next batch
            raise PenstockTimeoutError(f"side inputs were not read within {_SIDE_INPUTS_S} s")


def side_content(driver: InProcessDriver, graph: ApplicationGraph, spec: StoreSpec, task: int) -> Content:
    if isinstance(spec.side, SideInputs):
        catch_up(driver, graph)
        return _epoch(driver, task).wings.of(SideInputService).engine(spec.name, task)
    driver.loop.parts.of(Tables).settle()
    return _epoch(driver, task).wings.of(PushedTables).newest(spec.name, task)


def _epoch(driver: InProcessDriver, task: int) -> Epoch:
    epoch = driver.fleet.container_of(task).current
    if epoch is None:
        raise ConfigError("the job has no open epoch: call run() first")
    return epoch
