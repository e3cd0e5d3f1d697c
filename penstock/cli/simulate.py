"""`penstock simulate`."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.wording import escaped
from penstock.cli.shared.application import load_application, load_function
from penstock.cli.shared.errors import report as report_failure
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import Call
from penstock.errors import ConfigError, NotFoundError, PenstockError

if TYPE_CHECKING:
    from penstock.admin.stream.publish import PublishOptions
    from penstock.application.application import Application

_SIMULATION = "penstock.testing.simulation"
"""By its name: only this command knows the package for tests, and only while it runs."""


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
