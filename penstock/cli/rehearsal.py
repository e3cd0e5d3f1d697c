"""`penstock replay` and `penstock shadow`."""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from penstock.base.wording import counted, escaped, json_text, listed, utc_text
from penstock.cli.shared.application import load_application
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import JobName, JsonCall
from penstock.cli.shared.output import print_json_line
from penstock.errors import ConfigError, Interrupted

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
