"""The command line, put together. A command's module is imported when the command is called, and
it imports what it needs; a list of the commands imports none of them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

import penstock
from penstock.base import plugins
from penstock.cli.shared.errors import ReportingGroup, report_unexpected, say
from penstock.cli.shared.options import Debug, command, tidy_help
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.wing import Wing


@dataclass(frozen=True, slots=True)
class _Entry:
    """A command that is not imported yet: its place, and its text in a list of commands."""

    module: str
    help: str
    function: str | None = None
    """The function of a single command; without one, the module's `app` is a group of commands."""

    def load(self, name: str) -> Any:
        module = importlib.import_module(f"penstock.cli.{self.module}")
        if self.function is None:
            return _group(name, module.app)
        return _single(name, getattr(module, self.function))


COMMANDS = {
    "new": _Entry("config", "Make a folder with a job, its test, its configuration and a Dockerfile.", "new"),
    "run": _Entry("run", "Run an application on Spark until it is stopped.", "run"),
    "check": _Entry(
        "run",
        "Say everything for which a start of an application would be refused, without a start and without Spark.",
        "check",
    ),
    "simulate": _Entry(
        "rehearsal",
        "Run an application under many faults, in simulated processes, and check what has to hold in the end.",
        "simulate",
    ),
    "status": _Entry("watch", "Show whether a job is running and how far it has read, or list all jobs.", "status"),
    "dashboard": _Entry("watch", "Serve a page on which people look at jobs, until Ctrl-C.", "dashboard"),
    "logs": _Entry("watch", "Show what a job's containers on this host have logged and printed, by time.", "logs"),
    "drain": _Entry("job", "Ask a job to process everything in flight and then end.", "drain"),
    "stop": _Entry("job", "Ask a running job to stop after its current batch, with a last commit.", "stop"),
    "fork": _Entry(
        "job",
        "Make a job that begins with the state of another one, without a copy of it.",
        "fork",
    ),
    "replay": _Entry(
        "rehearsal",
        "Show what a job did with the messages of a key: the state before and after each, and what it sent.",
        "replay",
    ),
    "shadow": _Entry(
        "rehearsal",
        "Compare a changed application with a job's own: what both send and keep for the same real input.",
        "shadow",
    ),
    "deploy": _Entry(
        "run",
        "Run a changed application as a new job that takes over from a running one at a checkpoint.",
        "deploy",
    ),
    "job": _Entry("job", "Delete, adopt, detach or sign a job, or show its audit log."),
    "checkpoint": _Entry("checkpoint", "Show, keep and make the checkpoints of a job."),
    "startpoint": _Entry("startpoint", "Choose where the next start of a job begins to read."),
    "state": _Entry("state", "Read, compare, verify, change and move the backed-up state of a job."),
    "stream": _Entry("stream", "Create, publish to, read, replay, limit, end and delete streams."),
    "table": _Entry("table", "Show the versions of pushed tables, or choose one."),
    "config": _Entry("config", "Check a configuration, or list the keys."),
}


@dataclass(frozen=True, slots=True)
class _OfWing:
    """The commands of a wing, not imported yet."""

    wing: Wing

    @property
    def help(self) -> str:
        return self.wing.help

    def load(self, name: str) -> Any:
        found = self.wing.load(self.wing.commands)
        if not isinstance(found, typer.Typer):
            raise self.wing.unusable(f"`{self.wing.commands}` is a {type(found).__name__}, and no typer.Typer")
        return _group(name, found)


# A program that calls commands one after the other makes each of them once: reading the options takes most of a call.
@cache
def _single(name: str, function: Callable[..., None]) -> Any:
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    command(alone, name)(function)
    single = typer.main.get_command(alone)
    tidy_help(single)
    return single


@cache
def _group(name: str, commands: typer.Typer) -> Any:
    group = typer.main.get_group(commands)
    group.name = name
    tidy_help(group)
    return group


@cache
def commands() -> dict[str, _Entry | _OfWing]:
    """The commands of Penstock, and of the wings that other distributions bring. A broken distribution hides none of
    Penstock's: what runs a job refuses it."""
    try:
        outside = plugins.from_outside(plugins.OUTSIDE_WINGS)
    except ConfigError as error:
        say(f"warning: {error}")
        outside = {}
    own = {each.name: _OfWing(each) for each in outside.values() if each.commands}
    return {**own, **COMMANDS}


class RootGroup(ReportingGroup):
    """The root command. It lists placeholders of its commands, and loads the one that is called."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        for name, entry in commands().items():
            self.add_command(TyperCommand(name, help=entry.help))
        self._loaded: set[str] = set()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        tidy_help(self)  # not sooner: the options for completion come last
        super().format_help(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name in commands() and name not in self._loaded:
            self.add_command(commands()[name].load(name))
            self._loaded.add(name)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="penstock",
    cls=RootGroup,
    help="Stateful stream processing in Python on Apache Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def root(
    debug: Debug = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Stateful stream processing in Python on Apache Spark."""


def main() -> None:
    """The entry point. Exit status: 0 success, 2 a mistake in the call or the configuration, 1 a failure."""
    try:
        app()
    except Exception as error:
        report_unexpected(error)
        sys.exit(1)
