"""`penstock state import-spark`. What it needs of Arrow and RocksDB is imported when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn

from penstock.base.wording import counted
from penstock.cli.shared.application import load_application, load_function
from penstock.cli.shared.errors import say
from penstock.cli.shared.input import Confirmation, YesOnly
from penstock.cli.shared.options import JsonCall
from penstock.cli.shared.output import print_json, show, stderr_console
from penstock.errors import ConfigError

if TYPE_CHECKING:
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
        _tell(facts, ran=ran)


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


def _tell(facts: ImportFacts, *, ran: bool) -> None:
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
