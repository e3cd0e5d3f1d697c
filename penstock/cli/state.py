"""`penstock state`: `list`, `verify`, `gc`, `edit`, `import-spark`, `repartition`; the others are in `state_read.py`.

What they need of Arrow, RocksDB and Spark is imported when they are called.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn

from penstock.admin.jobs import VERSION_FORMS
from penstock.base.wording import counted
from penstock.cli.shared.application import load_application, load_function
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import Confirmation, JobName, JsonCall, YesOnly, command
from penstock.cli.shared.output import print_json, show, stderr_console, to_json
from penstock.cli.state_read import Version, diff_versions, get_value, scan_entries
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.admin.state.repartition import Repartition, RepartitionFacts, Rule
    from penstock.admin.state.spark_import import ImportFacts, SparkImport


def import_spark(
    application: Annotated[str, typer.Argument(metavar="APP")],
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT")],
    store: Annotated[str, typer.Option("--store", metavar="NAME")],
    operator: Annotated[int | None, typer.Option("--operator", metavar="N")] = None,
    spark_store: Annotated[str, typer.Option("--spark-store", metavar="NAME")] = "default",
    variable: Annotated[str | None, typer.Option("--state-var", metavar="NAME")] = None,
    batch: Annotated[int | None, typer.Option("--batch", metavar="N")] = None,
    function: Annotated[str | None, typer.Option("--map", metavar="F")] = None,
    raw: Annotated[bool, typer.Option("--raw")] = False,
    replace: Annotated[bool, typer.Option("--replace")] = False,
    yes: YesOnly = False,
    *,
    call: JsonCall,
) -> None:
    """Fill a store with the state of a Spark Structured Streaming query (RocksDB provider).

    The query and the job must be stopped. The command first shows how each column is mapped. It then reads every entry,
    assigns it to the task that owns its key, and backs it up. At the end it writes one new checkpoint, which keeps the
    positions and the other stores of the last checkpoint (for a job that never ran, the positions of a first start).
    `penstock checkpoint set` then moves the positions to those of the query. Until the checkpoint is written, nothing
    has changed.

    Args:
        application: The application, as `penstock run` takes it.
        checkpoint: The checkpointLocation of the Spark query: a folder, s3://, gs:// or az://.
        store: The application's store.
        operator: Spark's stateful operator; needed if the query has several.
        spark_store: Its state store.
        variable: The state variable of a transformWithState.
        batch: The state after this batch; by default the last committed one.
        function: module:function or file.py:function, called with key and value as dicts of their columns (a
            ListState's value is a list of them); returns (key, value) for the store, or None to leave it out. A third
            item is the key of the entry's messages, as bytes or text, where the store has other keys.
        raw: Take keys and values as Spark's bytes.
        replace: Delete what the store holds now.
    """
    from penstock.admin.state.spark_import import plan_spark_import

    if raw and function is not None:
        raise ConfigError("--raw takes no function: leave out --raw or --map")
    confirmation = Confirmation.of(yes=yes, as_json=call.as_json, file="")
    with plan_spark_import(
        load_application(application).app,
        checkpoint,
        store,
        call.config,
        call.assignments,
        operator=operator,
        spark_store=spark_store,
        variable=variable,
        batch=batch,
        function=None if function is None else load_function(function),
        raw=raw,
        called=application,
        function_called=f"`{function}`",
    ) as planned:
        if not call.as_json:
            show(planned.as_facts())
        facts = _import(planned, confirmation, replace=replace)
        ran = planned.target.ran
    if call.as_json:
        print_json(facts)
    else:
        _tell_import(facts, ran=ran)


def _import(planned: SparkImport, confirmation: Confirmation, *, replace: bool) -> ImportFacts:
    from penstock.admin.state.spark_import import import_spark

    console = stderr_console()
    columns = SpinnerColumn(), TextColumn("{task.description}")
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_interactive)
    shown = bar.add_task("reading")

    def confirm() -> None:
        confirmation.ask(f"Import into store `{planned.target.spec.name}`?", "nothing was imported")
        bar.start()

    def progress(partition: int, entries: int) -> None:
        text = f"partition {partition} of {planned.state.store.partitions}, {counted(entries, 'entry')}"
        bar.update(shown, description=f"reading: {text}")

    try:
        return import_spark(planned, replace=replace, confirm=confirm, progress=progress)
    finally:
        bar.stop()


def _tell_import(facts: ImportFacts, *, ran: bool) -> None:
    if not ran:
        say(
            "note: the job reads from where a first start begins, not from where the query stopped: "
            f"`penstock checkpoint set {facts.job}` moves it there"
        )
    left = f", {facts.left_out:,} left out" if facts.left_out else ""
    say(
        f"{counted(sum(facts.entries), 'entry')} imported into store `{facts.store}`{left}: "
        f"checkpoint {facts.checkpoint} is now the last one of job `{facts.job}`: its next start begins there"
    )


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
    call.tell(facts, _tell_repartition)


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
    moved = importlib.import_module("penstock.spark.stored_state")

    def confirm() -> None:
        change = f"from {plan.record.task_count} to {plan.tasks} tasks"
        confirmation.ask(f"Move the state of job `{job}` {change}?", "nothing was changed")
        say("starting Spark; this takes some seconds")

    return repartition(planned, moved.mover(planned.found.config, f"{job} repartition"), confirm=confirm)


def _tell_repartition(facts: RepartitionFacts) -> None:
    if facts.written is None:
        return
    entries = sum(sum(each.entries) for each in facts.stores)
    say(
        f"{counted(entries, 'entry')} moved in {facts.seconds:.1f} s: checkpoint {facts.written} with "
        f"{counted(facts.after, 'task')} is now the last one of job `{facts.job}`. Its next start begins there, with "
        f"`job.intermediate.stream.partitions: {facts.after}`"
    )


def edit(
    job: JobName,
    store: Annotated[str, typer.Argument(metavar="STORE", help="The store.")],
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")] = None,
    deletes: Annotated[list[str] | None, typer.Option("--delete", metavar="KEY")] = None,
    function: Annotated[str | None, typer.Option("--apply", metavar="F")] = None,
    task: Annotated[int | None, typer.Option("--task", metavar="N", min=0)] = None,
    application: Annotated[str | None, typer.Option("--app", metavar="APP")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
    yes: YesOnly = False,
    *,
    call: JsonCall,
) -> None:
    """Change single entries of a store of a stopped job, or of a fork.

    The command first shows each entry before and after. It then writes one new checkpoint, with the positions and all
    other state of the last one. The checkpoint before gets a label, with which a start undoes the change.

    Args:
        sets: Set this entry, as the store's serdes read key and value; may be repeated.
        deletes: Delete the entry of this key; may be repeated.
        function: Change entries with this function of key and value, as module:function or file.py:function. It returns
            the value, or None to delete the entry.
        task: The task that has the keys; by default all that have an entry of the key, or the one that owns it.
        application: Take custom serdes from this application.
        dry_run: Only show what would change.
    """
    from penstock.admin.state.edit import edit_state, plan_edit

    if not (sets or deletes or function):
        raise ConfigError("give what is to change, with --set, --delete or --apply")
    pairs = dict(map(_pair, sets or ()))
    confirmation = Confirmation.of(yes=yes or dry_run, as_json=call.as_json, file="")
    applied = None if function is None else load_function(function)
    with call.target(job, application) as found:
        if not dry_run:
            confirmation.refuse_running(found)
        with plan_edit(
            found, store, sets=pairs, deletes=deletes or (), function=applied, task=task, called=application
        ) as planned:
            if not call.as_json:
                show(planned.as_facts())
            elif dry_run:
                print_json(planned.shown())
            if dry_run:
                return
            if planned.is_needed:
                confirmation.ask("Change these entries?", "nothing was changed")
            done = edit_state(planned)
    if call.as_json:
        print_json(done)
    elif done.checkpoint is None:
        say("nothing has to change")
    else:
        say(
            f"{counted(done.changed, 'entry')} changed: checkpoint {done.checkpoint} is now the last one of job "
            f"`{done.job}`. To undo it, start the job with `--from {done.undo}`; `penstock checkpoint unlabel "
            f"{done.job} {done.undo}` lets the checkpoint before go"
        )


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ConfigError(f"`--set {text}` is not KEY=VALUE")
    return key, value


_SHOWN = 20
app = typer.Typer(help="Read, compare, verify, change and move the backed-up state of a job.", no_args_is_help=True)


def list_state(
    job: JobName,
    version: Annotated[
        str | None, typer.Option("--version", "--checkpoint", metavar="V", help=f"Only this version: {VERSION_FORMS}.")
    ] = None,
    by_task: Annotated[bool, typer.Option("--tasks")] = False,
    *,
    call: JsonCall,
) -> None:
    """List the objects of each store and backend, for every retained checkpoint and under the job root.

    Nothing is restored. --json prints every task and whole markers.

    Args:
        by_task: List each task instead of their sum.
    """
    from penstock.admin.state.held import state_versions

    with call.open(job) as found:
        facts = state_versions(found, version)
    if call.as_json:
        document = to_json(facts)
        del document["damaged"]
        print_json(document)
        for note in facts.notes:
            say(note)
    else:
        show(facts.facts_by(task=by_task))
    if facts.damaged:
        say(
            f"the checkpoint log is damaged, so this may not be all: `penstock checkpoint list {facts.job}` shows where"
        )


def verify_state(
    job: JobName,
    version: Version = "latest",
    store: Annotated[list[str] | None, typer.Option("--store", metavar="STORE")] = None,
    *,
    call: JsonCall,
) -> None:
    """Restore a retained version from each backend to a scratch folder, and compare the entries key by key.

    The exit status is 1 if a backend cannot be restored or two backends of a store differ: it is not safe to switch.

    Args:
        store: Only this store; may be repeated.
    """
    from penstock.admin.state.reading import verify
    from penstock.cli.shared.reading import restoring

    with call.open(job) as found, restoring() as view:
        verdict = verify(found, version, store or (), watcher=view)
    call.show(verdict)
    if not verdict.agrees:
        raise typer.Exit(1)


def collect_garbage(
    job: JobName, dry_run: Annotated[bool, typer.Option("--dry-run")] = False, *, call: JsonCall
) -> None:
    """Delete objects that no retained checkpoint needs, such as those of failed runs and of dropped backends.

    A running job does this by itself; without --dry-run the job must be stopped.

    Args:
        dry_run: Only show what would be deleted.
    """
    from penstock.admin.state import held

    with call.open(job) as found:
        collected = held.collect_garbage(found, dry_run=dry_run)
    call.show(collected)


_COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_state,
    "get": get_value,
    "scan": scan_entries,
    "diff": diff_versions,
    "verify": verify_state,
    "gc": collect_garbage,
    "edit": edit,
    "import-spark": import_spark,
    "repartition": repartition,
}
for _name, _function in _COMMANDS.items():
    command(app, _name)(_function)
