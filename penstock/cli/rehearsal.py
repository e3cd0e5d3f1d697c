"""`penstock replay`, `shadow` and `simulate`: an application runs apart from its job, in this process."""

from __future__ import annotations

import importlib
import logging
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.wording import counted, escaped, json_text, listed, utc_text
from penstock.cli.shared.application import load_application, load_function
from penstock.cli.shared.errors import report as report_failure
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import Call, JobName, JsonCall
from penstock.cli.shared.output import print_json_line
from penstock.errors import ConfigError, Interrupted, NotFoundError, PenstockError

if TYPE_CHECKING:
    from penstock.admin.stream.publish import PublishOptions
    from penstock.application.application import Application


_REPLAY, _SHADOW = "penstock.testing.rehearsal.replay", "penstock.testing.rehearsal.shadow"
"""By its name: only these commands know the package for tests, and only while they run."""


def replay(
    job: JobName,
    application: Annotated[str, typer.Argument(metavar="APP")],
    call: JsonCall,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY")] = None,
    message: Annotated[str | None, typer.Option("--input", metavar="STREAM:PARTITION:OFFSET")] = None,
    output: Annotated[str | None, typer.Option("--output", metavar="STREAM:PARTITION:OFFSET")] = None,
    from_checkpoint: Annotated[str | None, typer.Option("--from", metavar="CHECKPOINT")] = None,
    to_checkpoint: Annotated[str | None, typer.Option("--to", metavar="CHECKPOINT")] = None,
    debug: Annotated[bool, typer.Option("--break")] = False,
) -> None:
    """Show what a job did with the messages of a key: the state before and after each, and what it sent.

    The job's state as of a checkpoint and the messages behind it are processed again, in this process and without
    Spark. Nothing is written to the job or to a system: what the application sends is held back. The job may run.

    Each message is alone in a batch, and what is due at the end of a batch fires behind its last message. A last line
    names the operators that did not do the same twice.

    Args:
        application: The application, as for `penstock run`.
        key: Show the messages of this key, as `penstock state get` takes it.
        message: Show this message of an input, from the last checkpoint before it on.
        output: Show the messages of the key of this message of an output, from the last checkpoint before it on.
        from_checkpoint: With --key, begin with this checkpoint, by its ID or label; by default the oldest.
        to_checkpoint: With --key, end where this checkpoint does; by default the last.
        debug: Stop in Python's debugger where the code of an operator gets such a message: not in the functions of
            aggregates, and not in what a message does later, when something fires.
    """
    given = [each for each in (key, message, output) if each is not None]
    if len(given) != 1:
        raise ConfigError("give one of --key, --input and --output")
    if key is None and (from_checkpoint or to_checkpoint):
        raise ConfigError("--from and --to go with --key: a message's checkpoint follows from its offset")
    if debug and call.as_json:
        raise ConfigError("--break talks to you, and --json to a program: give one of them")
    replays: Any = importlib.import_module(_REPLAY)
    app = load_application(application).app
    tell = _print_json if call.as_json else _Printer()
    try:
        with _without_warnings(), call.open(job) as found:
            if key is not None:
                done = replays.replay_key(found, app, key, tell, from_checkpoint, to_checkpoint, debug=debug)
            else:
                which = replays.replay_input if message is not None else replays.replay_output
                done = which(found, app, *_place(given[0]), tell, debug=debug)
    except Interrupted:
        say("the replay was left")
        raise typer.Exit(1) from None
    if call.as_json:
        print_json_line({"messages": done.messages, "notTheSameTwice": list(done.differing)})
        return
    say(f"replayed {counted(done.messages, 'message')}")
    if done.differing:
        say(
            f"warning: {listed([f'`{each}`' for each in done.differing])} did not do the same twice, so the job may "
            "have done something else: look for the time, random numbers, the order of sets, and calls of services"
        )


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Runs over the input warn as those of a job do, and nobody can do anything about it here."""
    logger = logging.getLogger("penstock")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _place(text: str) -> tuple[Any, int]:
    from penstock.api.ssp import SystemStream, SystemStreamPartition

    stream, _, rest = text.partition(":")
    partition, _, offset = rest.partition(":")
    if not (stream and partition.isdecimal() and offset.isdecimal()):
        raise ConfigError(f"`{text}` is not a message: expected STREAM:PARTITION:OFFSET, as local.trips:0:17")
    name = SystemStream.parse(stream if "." in stream else f"local.{stream}")
    return SystemStreamPartition(name.system, name.stream, int(partition)), int(offset)


def _print_json(step: Any) -> None:
    print_json_line(step.as_json())


class _Printer:
    """Prints steps for people."""

    def __call__(self, step: Any) -> None:
        shown = step.as_json()
        lines = list(self._head(shown))
        lines += _changes(shown["changes"])
        lines += [
            f"  sent to {each['output']} {each['partition']}  {_text(each['key'])}  {_text(each['value'])}"
            for each in shown["outputs"]
        ]
        typer.echo("\n".join(escaped(line) for line in lines))

    def _head(self, shown: dict[str, Any]) -> Any:
        messages = shown["messages"]
        if not messages:
            yield f"Due windows and timers fire, {utc_text(shown['batchTime'])}"
            return
        first = messages[0]
        to = listed(sorted({f"`{name}`" for each in messages for name in each["operators"]}))
        yield f"{first['input']} {first['offset']}, {utc_text(first['timestamp'])}" + (f", to {to}" if to else "")
        seen = []
        for each in messages:
            if (content := (each["key"], each["value"])) not in seen:
                seen.append(content)
                yield f"  {_text(each['key'])}  {_text(each['value'])}"


def _changes(changes: list[dict[str, Any]]) -> Iterator[str]:
    """The changes of entries that have a form for people, and how many others there are of each key."""
    others = Counter[tuple[str, str]]()
    for each in changes:
        if any(isinstance(value, str) and value.startswith("0x") for value in (each["before"], each["after"])):
            others[each["store"], _text(each["key"])] += 1
        else:
            yield f"  {each['store']}  {_text(each['key'])}: {_text(each['before'])} -> {_text(each['after'])}"
    for (store, key), count in others.items():
        yield f"  {store}  {key}: {counted(count, 'entry')} changed"


def _text(value: Any) -> str:
    return "-" if value is None else json_text(value)


def shadow(
    job: JobName,
    application: Annotated[str, typer.Argument(metavar="APP")],
    against: Annotated[str, typer.Option("--against", metavar="APP")],
    call: JsonCall,
    from_checkpoint: Annotated[str | None, typer.Option("--from", metavar="CHECKPOINT")] = None,
    to_checkpoint: Annotated[str | None, typer.Option("--to", metavar="CHECKPOINT")] = None,
) -> None:
    """Compare a changed application with a job's own: what both send and keep for the same real input.

    Both begin with the job's state as of a checkpoint and process the messages behind it, in this process and without
    Spark. Nothing is written to the job or to a system: what the applications send is held back. The job may run.

    Messages are compared by key, each as often as it is sent, and not in their order. The exit status is 1 if something
    differs.

    Args:
        application: The changed application, as for `penstock run`.
        against: The job's own application.
        from_checkpoint: Begin with this checkpoint, by its ID or label; by default the last.
        to_checkpoint: End where this checkpoint does; by default at the present ends of the inputs.
    """
    shadows: Any = importlib.import_module(_SHADOW)
    before, after = load_application(against).app, load_application(application).app
    with _without_warnings(), call.open(job) as found:
        facts = shadows.shadow(found, before, after, from_checkpoint, to_checkpoint)
    call.show(facts)
    if facts.differs:
        raise typer.Exit(1)


_SIMULATION = "penstock.testing.simulation"
"""By its name, as those above."""


def simulate(
    application: Annotated[str, typer.Argument(metavar="APP")],
    call: Call,
    inputs: Annotated[list[str] | None, typer.Option("--inputs", metavar="[STREAM=]FILE")] = None,
    key: Annotated[list[str] | None, typer.Option("--key", metavar="[STREAM=]FIELD")] = None,
    value: Annotated[list[str] | None, typer.Option("--value", metavar="[STREAM=]FIELD")] = None,
    timestamp: Annotated[list[str] | None, typer.Option("--timestamp", metavar="[STREAM=]FIELD")] = None,
    headers: Annotated[list[str] | None, typer.Option("--headers", metavar="[STREAM=]FIELD")] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", metavar="N", min=1, show_default=False)] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", min=1)] = None,
    invariants: Annotated[list[str] | None, typer.Option("--invariants", metavar="FUNCTION")] = None,
    compare: Annotated[bool | None, typer.Option("--compare/--no-compare", show_default=False)] = None,
    late: Annotated[list[str] | None, typer.Option("--late", metavar="STREAM")] = None,
    doubled: Annotated[list[str] | None, typer.Option("--doubled", metavar="STREAM")] = None,
    partitions: Annotated[int, typer.Option("--partitions", metavar="N", min=1)] = 2,
    processes: Annotated[int | None, typer.Option("--processes", metavar="N", min=1)] = None,
    limit: Annotated[float, typer.Option("--limit", metavar="SECONDS", min=1)] = 60.0,
    network: Annotated[bool, typer.Option("--network")] = False,
) -> None:
    """Run an application under many faults, in simulated processes, and check what has to hold in the end.

    Each seed is a life of the job: it is killed, stopped and started again, loses containers, repeats attempts, and
    meets stores and streams that are slow or fail. The first life that is broken ends the search, and the seed that is
    named lives it again. Every stream is a simulated one, and so is the object store. The application's own code is
    real, and runs once for each attempt of each life: files that it writes are written.

    The exit status is 1 if something is broken, and 2 if nothing could be simulated.

    Args:
        application: The application, as `penstock run` takes it.
        inputs: A file with the messages of an input or side input, as for `penstock stream publish`. STREAM may be left
            out if there is only one input; may be repeated.
        key: The field with the key, as for `penstock stream publish`; with STREAM, of this input.
        value: The field with the value; without it, the whole record.
        timestamp: The field with the time, as for `penstock stream publish`.
        headers: The field with the headers, as for `penstock stream publish`.
        seeds: Live the seeds from 1 to N, until one is broken; 100 by default.
        seed: Live only this seed.
        invariants: A function of inputs, outputs and stores that raises AssertionError, or returns a text, if something
            does not hold: module:function or file.py:function; may be repeated.
        compare: Compare each life with one without faults. The default is to do so if there are no --invariants.
        late: An input whose messages may come later than others, and must make no difference; may be repeated.
        doubled: An input whose messages may come twice, and must make no difference; may be repeated.
        partitions: The partitions of each stream, and so the tasks of the job.
        processes: The worker processes; one a core by default.
        limit: The most seconds that a life may take.
        network: Let the application's code reach the network, again in each attempt. Without it, a call fails.
    """
    if seed is not None and seeds is not None:
        raise ConfigError("`--seed` lives one seed and `--seeds` many: give one of the two")
    before = signal.signal(signal.SIGTERM, _end)
    try:
        report = _lives(
            application, call, inputs or (),
            {"key_field": key, "value_field": value, "timestamp_field": timestamp, "headers_field": headers},
            seeds=range(1, (seeds or 100) + 1) if seed is None else [seed],
            invariants=invariants or (),
            partitions=partitions,
            late=[_stream(each) for each in late or ()],
            doubled=[_stream(each) for each in doubled or ()],
            compare=compare,
            processes=processes,
            limit_s=limit,
            network=network,
        )  # fmt: skip
    except PenstockError as error:  # a life that fails is in the report
        report_failure(error)
        raise typer.Exit(2) from error
    finally:
        signal.signal(signal.SIGTERM, before)
    typer.echo("\n".join(escaped(line) for line in str(report).splitlines()))
    if not report.holds:
        if report.failure is not None and report.failure.seed and seed is None:
            typer.echo(f"`--seed {report.failure.seed}` lives this life again")
        raise typer.Exit(1)


def _end(_number: int, _frame: object) -> None:
    """End by SIGTERM as by Ctrl-C: worker processes and files go."""
    raise SystemExit(128 + signal.SIGTERM)


def _lives(
    application: str,
    call: Call,
    inputs: Sequence[str],
    fields: Mapping[str, Sequence[str] | None],
    *,
    invariants: Sequence[str],
    partitions: int,
    **options: Any,
) -> Any:
    """The report of `run_simulation`."""
    preparation: Any = importlib.import_module(f"{_SIMULATION}.preparation")
    simulation: Any = importlib.import_module(f"{_SIMULATION}.simulate")
    app = load_application(application).app
    functions = [load_function(each) for each in invariants]
    config = preparation.load_for_simulation(app, call.config, call.assignments or ())
    files = _files(app, inputs)
    _check_streams(fields, {stream for stream, _ in files})
    read = {stream: _options(stream, fields) for stream, _ in files}
    give = _giver(files, read, partitions)
    return simulation.run_simulation(
        app, give, config, invariants=functions, partitions=partitions, tell=say, **options
    )


def _files(app: Application, inputs: Sequence[str]) -> list[tuple[str, str]]:
    """Stream and file of each `--inputs`."""
    graph = app.graph()
    names, sides = [str(op.stream) for op in graph.inputs], sorted(map(str, graph.side_streams()))
    if not inputs:
        first = names[0] if names else "STREAM"
        raise ConfigError(
            f"the simulation needs messages: give `--inputs {first}=FILE`, a file as for `penstock stream publish`. "
            f"The inputs of application `{app.name}` are {', '.join(f'`{each}`' for each in names) or 'none'}"
        )
    found = []
    for each in inputs:
        stream, equals, file = each.partition("=")
        if equals:
            found.append((_stream(stream), file))
        elif len(names) == 1:
            found.append((names[0], each))
        else:
            raise ConfigError(
                f"`--inputs {each}` does not say which input the file is for: give `--inputs STREAM={each}`, where "
                f"STREAM is one of {', '.join(f'`{name}`' for name in names) or 'none'}"
            )
        stream, file = found[-1]
        if stream not in {*names, *sides}:
            known = ", ".join(f"`{one}`" for one in names) or "none"
            also = f" and whose side inputs are {', '.join(f'`{one}`' for one in sides)}" if sides else ""
            raise ConfigError(
                f"`{stream}` is not an input of application `{app.name}`, whose inputs are {known}{also}: "
                f"`--inputs {each}` names it"
            )
        if any(other == stream for other, _ in found[:-1]):
            raise ConfigError(f"`--inputs {each}` is a second file for `{stream}`: give one file for each input")
        if file != "-" and not Path(file).exists():
            raise NotFoundError(f"there is no file {file}, which `--inputs {each}` names")
    return found


def _check_streams(fields: Mapping[str, Sequence[str] | None], streams: Set[str]) -> None:
    """A field given for a stream without messages would have no effect."""
    for name, given in fields.items():
        option = f"--{name.removesuffix('_field')}"
        for each in given or ():
            stream, equals, _ = each.partition("=")
            if equals and _stream(stream) not in streams:
                known = ", ".join(f"`{one}`" for one in sorted(streams))
                raise ConfigError(f"`{option} {each}` is for an input without a file: `--inputs` has files for {known}")


def _options(stream: str, fields: Mapping[str, Sequence[str] | None]) -> PublishOptions:
    from penstock.admin.stream.publish import PublishOptions

    return PublishOptions(**{name: _field(stream, given or ()) for name, given in fields.items()})  # type: ignore[arg-type]


def _field(stream: str, given: Sequence[str]) -> str | None:
    """The field for a stream: that with its name, or else the one without a name."""
    found: str | None = None
    for each in given:
        name, equals, field = each.partition("=")
        if not equals:
            found = found or each
        elif _stream(name) == stream:
            return field
    return found


def _giver(
    files: Sequence[tuple[str, str]], options: dict[str, PublishOptions], partitions: int
) -> Callable[[Any], object]:
    def give(inputs: Any) -> None:
        for stream, file in files:
            for number, (message, timestamp) in enumerate(_messages(file, options[stream])):
                inputs.append_raw(
                    stream,
                    message.key,
                    message.value,
                    partition=number % partitions if message.key is None else None,
                    timestamp=timestamp,
                    headers=message.headers,
                )

    return give


def _messages(file: str, options: PublishOptions) -> Iterator[tuple[Any, int]]:
    """The messages of a file with their times. Without a field for it, the time is that at which each life begins."""
    from penstock.admin.stream.publish import messages_of

    start: int = importlib.import_module(f"{_SIMULATION}.scheduler").START_NS // 1_000_000
    for message in messages_of(file, options):
        yield message, start if options.timestamp_field is None else message.timestamp


def _stream(name: str) -> str:
    """As in other commands, a name without a dot is one of `local`."""
    return name if "." in name else f"local.{name}"
