"""A look at what a start of an application would do or refuse, without a start and without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.admin.job.running import lease
from penstock.admin.jobs import opened
from penstock.application.application import Application
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.errors import ConfigError, Refusals
from penstock.facts import Facts, Shown
from penstock.graph.topology import plan_topology
from penstock.start.check import REFUSED, check_start
from penstock.start.plan import StartRequest
from penstock.start.startpoints import passing_over


@dataclass(frozen=True, slots=True)
class CheckFacts(Shown):
    """A start that would not be refused. `begins_with` is the checkpoint that it begins with; None: there is none.
    `state_is_cleared` says that the stores begin empty nevertheless. `tasks` is the number of tasks, `is_running`
    whether a driver has the job, so that a start has to wait. `notes` are sentences."""

    job: str
    begins_with: str | None
    state_is_cleared: bool
    tasks: int
    is_running: bool
    notes: tuple[str, ...]

    def as_facts(self) -> Facts:
        begins = self.begins_with or "nothing: the job has no checkpoint"
        state = " with empty stores" if self.state_is_cleared else ""
        has_driver = "a driver has the job now: a start is refused until that one has ended"
        notes = [f"note: {each}" for each in (*self.notes, *([has_driver] if self.is_running else []))]
        lines = {"job": self.job, "tasks": self.tasks, "begins with": f"{begins}{state}"}
        return Facts(lines, notes=(*notes, f"job {self.job} could start"))


def check_application(
    app: Application,
    file: str | Path | None = None,
    assignments: Sequence[str] | None = None,
    *,
    overrides: Mapping[str, object] | None = None,
    from_checkpoint: str | None = None,
    reset_operators: Sequence[str] = (),
) -> CheckFacts:
    """Check that the application could start now. Writes nothing.

    Args:
        app: the application.
        file, assignments, overrides: the configuration, as in `open_job`.
        from_checkpoint: the checkpoint that the start is to begin with, by its id or label; the last one, if None.
        reset_operators: the operators that are to begin again.

    Raises:
        ConfigError, IncompatibleError, NotFoundError: a start would be refused. The message has every reason, and
            `refusals` of the error has each of them.
        SystemAwayError: a system does not answer, so it is not known.
    """
    refusals = Refusals(REFUSED)
    graph = app.graph()
    stores = [store.name for store in graph.stores]
    try:
        config = load_config(file, overrides, assignments or (), default_job_name=app.name, stores=stores)
    except ConfigError as error:
        refusals.note(error)
        with refusals.noted():  # the graph can be wrong as well
            plan_topology(graph)
        refusals.check()
        raise
    return _checked(app, config, StartRequest("", from_checkpoint, reset_operators=reset_operators))


def _checked(app: Application, config: JobConfig, request: StartRequest) -> CheckFacts:
    with opened(config, app) as found:
        plan = check_start(app.graph(), config, found.objects, request=request, backends=True)
        running = lease(found, wait=False).running
    record, unfollowed = plan.restore_from, (plan.graph or app.graph()).unfollowed
    notes = [passing_over(plan.decision.passed_over)]
    if unfollowed:
        notes.append(f"no operator follows {', '.join(f'`{op.id}`' for op in unfollowed)}: the results are dropped")
    return CheckFacts(
        found.paths.root,
        None if record is None else str(record.id),
        plan.clears_state,
        len({at.task for at in plan.positions}),
        running != "not running",
        tuple(filter(None, notes)),
    )
