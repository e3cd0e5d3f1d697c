"""`penstock state import-spark`. What it needs of Arrow, RocksDB and the engine is imported when it is called."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.checkpoint.change import Manner, Yes
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile
from penstock.cli.shared.output import print_facts, print_json, print_table
from penstock.errors import ConfigError, IncompatibleError
from penstock.wording import counted

if TYPE_CHECKING:
    from penstock.admin.state.spark_target import StoreTarget
    from penstock.state.spark.checkpoint import SparkCheckpoint
    from penstock.state.spark.mapping import EntryMapping, MappedColumn
    from penstock.state.spark.reader import SparkState


@dataclass(frozen=True, slots=True)
class ImportFacts:
    """What was imported. `left_out` counts entries the function returned None for; `entries` are by task."""

    job: str
    store: str
    checkpoint: str
    source: str
    operator: int
    spark_store: str
    variable: str | None
    batch: int
    columns: tuple[MappedColumn, ...]
    entries: tuple[int, ...]
    left_out: int
    backends: tuple[str, ...]


def import_spark(
    application: Annotated[
        str,
        typer.Argument(metavar="APP", help="The application, as `penstock run` takes it.", show_default=False),
    ],
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT",
            help="The checkpointLocation of the Spark query: a folder, s3://, gs:// or az://.",
            show_default=False,
        ),
    ],
    store: Annotated[str, typer.Option("--store", metavar="NAME", help="The application's store.", show_default=False)],
    operator: Annotated[
        int | None,
        typer.Option("--operator", metavar="N", help="Spark's stateful operator; the only one, if none is named."),
    ] = None,
    spark_store: Annotated[str, typer.Option("--spark-store", metavar="NAME", help="Its state store.")] = "default",
    variable: Annotated[
        str | None,
        typer.Option("--state-var", metavar="NAME", help="The state variable, of a transformWithState."),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", metavar="N", help="The state after this batch; the last committed, if none is named."),
    ] = None,
    function: Annotated[
        str | None,
        typer.Option(
            "--map",
            metavar="F",
            help="module:function or file.py:function, called with key and value as dicts of their columns (a "
            "ListState's value is a list of them); returns (key, value) for the store, or None to leave it out. A "
            "third item is the key of the entry's messages, as bytes or text, where the store has other keys.",
            show_default=False,
        ),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Keys and values as Spark's own bytes.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Forget what the store holds now.")] = False,
    yes: Yes = False,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Fill a store with the state of a Spark Structured Streaming query (RocksDB provider).

    Both must be stopped. What becomes of each column is shown first. Then every entry is read, goes to the task that
    owns its key, and is backed up by the store's backends; last, one new checkpoint of the job has it, with the
    positions and the other stores of the one before; of a job that never ran, the positions its first start would
    begin at. `penstock checkpoint set` then moves them to where the query stopped. Until that checkpoint is written
    nothing has changed.
    """
    from penstock.admin.state.spark_entries import import_entries
    from penstock.admin.state.spark_target import open_target
    from penstock.metadata.open import open_store
    from penstock.state.spark.checkpoint import SparkCheckpoint
    from penstock.state.spark.reader import open_state

    if raw and function is not None:
        raise ConfigError("--raw takes no function: leave out --raw or --map")
    manner = Manner.of(yes=yes, as_json=as_json, file="")
    with ExitStack() as stack:
        target = stack.enter_context(open_target(application, store, config, assignments))
        files = open_store(checkpoint)
        stack.callback(files.close)
        query = SparkCheckpoint(files, checkpoint)
        state = open_state(query, _operator(query, operator), spark_store, variable, batch)
        mapping = _mapping(state, target, function, raw=raw)
        if not as_json:
            _show(state, target, mapping)
        _refuse_unmapped(mapping)
        state.check()
        target.refuse_running()
        if not replace:
            target.refuse_content()
        _ask(manner, target)
        imported = import_entries(state, mapping, target)
    facts = ImportFacts(
        job=target.found.paths.root,
        store=store,
        checkpoint=str(imported.record.id),
        source=checkpoint,
        operator=state.operator.number,
        spark_store=spark_store,
        variable=state.variable,
        batch=state.batch,
        columns=mapping.columns,
        entries=imported.entries,
        left_out=imported.left_out,
        backends=target.backends,
    )
    if as_json:
        print_json(facts)
    else:
        _tell(facts, ran=target.ran)


def _operator(query: SparkCheckpoint, wanted: int | None) -> int:
    if wanted is not None:
        return wanted
    known = query.operators()
    if len(known) == 1:
        return known[0]
    query.committed()
    there = ", ".join(map(str, known)) or "none"
    raise ConfigError(f"`{query.url}` has the stateful operators {there}: name one with --operator")


def _mapping(state: SparkState, target: StoreTarget, function: str | None, *, raw: bool) -> EntryMapping:
    from penstock.cli.shared.application import load_function
    from penstock.state.spark.mapping import function_mapping, plain_mapping, raw_mapping

    if raw:
        return raw_mapping(state, target.spec)
    if function is not None:
        return function_mapping(state, target.spec, load_function(function), f"`{function}`")
    return plain_mapping(state, target.spec)


def _show(state: SparkState, target: StoreTarget, mapping: EntryMapping) -> None:
    serdes = target.spec.key_serde.name, target.spec.value_serde.name
    partitions = counted(state.store.partitions, "partition")
    print_facts(
        [
            ("from", state.checkpoint.url),
            ("state", f"{state.name} ({state.operator.name}), {partitions}, batch {state.batch}"),
            ("to", f"store `{target.spec.name}` ({' '.join(serdes)}) of job {target.found.paths.root}"),
            ("tasks", target.tasks),
            ("positions", "as they are" if target.ran else "where a first start begins: the job never ran"),
            *(("the query read", offset) for offset in state.checkpoint.source_offsets(state.batch)),
        ]
    )
    rows = [
        (each.of, each.column, each.type, each.mapping or f"CANNOT BE MAPPED: {each.problem}")
        for each in mapping.columns
    ]
    print_table("", ("of", "column", "Spark's type", "becomes"), rows)


def _refuse_unmapped(mapping: EntryMapping) -> None:
    """Raise IncompatibleError, with everything that is wrong, if there is no mapping."""
    columns = [
        f"column `{each.column}` of the {each.of} ({each.type}): {each.problem}"
        for each in mapping.columns
        if each.problem
    ]
    if problems := [*mapping.problems, *columns]:
        raise IncompatibleError(
            "; ".join(problems) + ". Name a function that maps the entries with --map; nothing was imported"
        )


def _ask(manner: Manner, target: StoreTarget) -> None:
    if manner.yes:
        return
    if not manner.may_ask:
        raise ConfigError("nothing was imported: there is no terminal to ask on. --yes does it without a question")
    if not typer.confirm(f"Import into store `{target.spec.name}`?", err=True):
        say("nothing was imported")
        raise typer.Exit(1)


def _tell(facts: ImportFacts, *, ran: bool) -> None:
    if not ran:
        say(
            "note: the job reads from where a first start begins, not from where the query stopped: "
            f"`penstock checkpoint set {facts.job}` moves it there"
        )
    left = f", {facts.left_out:,} left out" if facts.left_out else ""
    say(
        f"{counted(sum(facts.entries), 'entry')} imported into store `{facts.store}`{left}: checkpoint "
        f"{facts.checkpoint} is "
        f"the last one of job `{facts.job}` now, and its next start begins there"
    )
