"""`penstock state repartition`. What it needs of Arrow, RocksDB and Spark is imported when it is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.wording import counted
from penstock.cli.shared.application import load_application, load_function
from penstock.cli.shared.errors import say
from penstock.cli.shared.input import Confirmation, YesOnly
from penstock.cli.shared.options import JsonCall
from penstock.cli.shared.output import show
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.admin.state.repartition import Repartition, RepartitionFacts, Rule


def repartition(
    application: Annotated[str, typer.Argument(metavar="APP")],
    tasks: Annotated[int, typer.Option("--tasks", metavar="N", min=1)],
    rules: Annotated[list[str] | None, typer.Option("--rule", metavar="STORE=RULE")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
    yes: YesOnly = False,
    *,
    call: JsonCall,
) -> None:
    """Give a stopped job another number of tasks, and move its state to them.

    The command shows the plan first. Spark then moves the state into new backups, and at the end the command writes one
    new checkpoint. Until then, nothing has changed. The former checkpoint remains as long as the job retains it.
    Afterwards, set `job.intermediate.stream.partitions` to the new number.

    Args:
        application: The application, as `penstock run` takes it.
        tasks: The new number of tasks.
        rules: The rule by which a task owns an entry of a store, where the plan asks for it: `key`, `first` (of a
            tuple), `stay`, `copy` (task 0's to all), `empty`, or module:function or file.py:function, called with key
            and value, which returns the key of the entry's messages. May be repeated.
        dry_run: Only show the plan.
    """
    from penstock.admin.state.repartition import plan_repartition

    if dry_run and yes:
        raise ConfigError("--dry-run asks for no confirmation: leave out --yes")
    confirmation = Confirmation.of(yes=yes or dry_run, as_json=call.as_json, file="")
    loaded = load_application(application)
    loaded.ship_by_value()
    with plan_repartition(loaded.app, tasks, call.config, call.assignments, rules=_rules(rules or ())) as planned:
        facts = planned.facts()
        if not call.as_json:
            show(facts.as_facts())
        if not dry_run:
            facts = _carry_out(planned, confirmation)
    call.tell(facts, _tell)


def _rules(given: list[str] | tuple[()]) -> dict[str, Rule]:
    from penstock.admin.state.repartition import RULES

    found: dict[str, Rule] = {}
    for text in given:
        store, equals, rule = text.partition("=")
        if not (store and equals and rule):
            raise ConfigError(f"--rule {text}: expected STORE=RULE")
        if store in found:
            raise ConfigError(f"--rule {text}: store `{store}` has a rule already")
        found[store] = rule if rule in RULES else _shipped(load_function(rule))  # type: ignore[assignment]
    return found


def _shipped(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is pickled whole: Spark's workers do not have its file."""
    importlib.import_module("pyspark.cloudpickle").register_pickle_by_value(sys.modules[function.__module__])
    return function


def _carry_out(planned: Repartition, confirmation: Confirmation) -> RepartitionFacts:
    from penstock.admin.state.repartition import repartition

    plan, job = planned.plan, planned.found.paths.root
    moved = importlib.import_module("penstock.spark.state_frames.stored_state")

    def confirm() -> None:
        change = f"from {plan.record.task_count} to {plan.tasks} tasks"
        confirmation.ask(f"Move the state of job `{job}` {change}?", "nothing was changed")
        say("starting Spark; this takes some seconds")

    return repartition(planned, moved.mover(planned.found.config, f"{job} repartition"), confirm=confirm)


def _tell(facts: RepartitionFacts) -> None:
    if facts.written is None:
        return
    entries = sum(sum(each.entries) for each in facts.stores)
    say(
        f"{counted(entries, 'entry')} moved in {facts.seconds:.1f} s: checkpoint {facts.written} with "
        f"{counted(facts.after, 'task')} is now the last one of job `{facts.job}`. Its next start begins there, with "
        f"`job.intermediate.stream.partitions: {facts.after}`"
    )
