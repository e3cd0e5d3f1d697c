"""Options that all commands share, what they open, how help shows them, and completion; and input besides options: a
file, and the answer to a question before something is changed.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, fields
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

import typer

from penstock.cli.shared.errors import say, show_tracebacks, words_without_secrets
from penstock.errors import ConfigError, NotFoundError, PenstockError

if TYPE_CHECKING:
    from penstock.admin.jobs import FoundJob
    from penstock.admin.stream.found import FoundStream
    from penstock.facts import Shown


Value = TypeVar("Value")
Function = TypeVar("Function", bound=Callable[..., None])
_ARGUMENT = re.compile(r"^(?:Args:\n)? {4}(\w+): ", re.MULTILINE)


def job_names(ctx: typer.Context) -> list[str]:
    """The jobs in `job.root`, by the options that were typed before. The list is empty if the root cannot be read, or
    is an object store, which would take the shell too long."""
    from penstock.admin.jobs import load_without_job, open_all_jobs

    with suppress(Exception):  # the command itself reports it
        call = ctx.params.get("config"), ctx.params.get("assignments")
        if load_without_job(*call).job.root.startswith("file:"):
            with open_all_jobs(*call) as jobs:
                return [found.paths.root for found in jobs]
    return []


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        envvar="PENSTOCK_CONFIG",
        help="The configuration, a YAML or properties file; by default the one that PENSTOCK_CONFIG names.",
    ),
]
Assignments = Annotated[
    list[str] | None, typer.Option("-c", metavar="KEY=VALUE", help="Set a configuration key; may be repeated.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON to standard output.")]
Debug = Annotated[
    bool, typer.Option("--debug", callback=show_tracebacks, help="Show the Python traceback of a failure.")
]
JobName = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="The job: `name-id`, or its name alone, to take `job.id` from the configuration.",
        autocompletion=job_names,
    ),
]
StreamName = Annotated[
    str, typer.Argument(metavar="NAME", help="The stream: `system.stream`, or a name without a dot for one of `local`.")
]


@dataclass(frozen=True, slots=True)
class Call:
    """The configuration that a command was called with. Opens what the command works on."""

    config: ConfigFile = None
    assignments: Assignments = None

    @property
    def options(self) -> str:
        """The configuration as options behind a command, without secrets; empty if none was given."""
        file = [] if self.config is None else ["--config", str(self.config)]
        words = [*file, *(word for each in self.assignments or () for word in ("-c", each))]
        return f" {words_without_secrets(words)}" if words else ""

    def open(self, job: str, *, deleted: bool = False) -> AbstractContextManager[FoundJob]:
        """The job of a name. Raises as `penstock.admin.open_job`."""
        from penstock.admin.jobs import open_job

        return open_job(job, self.config, self.assignments, deleted=deleted)

    @contextmanager
    def target(self, job: str, application: str | None) -> Iterator[FoundJob]:
        """The job of a name; with its application it need not have been started before.

        Raises:
            NotFoundError: there is no such job.
            ConfigError: the application is another job's; or as loading it.
        """
        from penstock.admin.checkpoint.target import NAME_IT
        from penstock.admin.jobs import open_job
        from penstock.cli.shared.application import load_application

        app = None if application is None else load_application(application).app
        with ExitStack() as stack:
            try:
                found = stack.enter_context(open_job(job, self.config, self.assignments, app=app, called=application))
            except NotFoundError as error:
                if app is not None:
                    raise
                raise NotFoundError(f"{error}. If it was never started: {NAME_IT}") from error
            yield found

    def stream(self, name: str) -> FoundStream:
        """The stream of a name, which need not exist. Raises ConfigError."""
        from penstock.admin.stream.found import open_stream

        return open_stream(name, self.config, self.assignments)


@dataclass(frozen=True, slots=True)
class JsonCall(Call):
    """The call of a command that takes `--json`, too."""

    as_json: AsJson = False

    def show(self, value: Shown) -> None:
        """Print the value as JSON, or its facts."""
        from penstock.cli.shared.output import print_json, show

        if self.as_json:
            print_json(value)
        else:
            show(value.as_facts())

    def tell(self, value: Value, tell: Callable[[Value], None]) -> None:
        """Print the value as JSON, or tell people about it."""
        from penstock.cli.shared.output import print_json

        (print_json if self.as_json else tell)(value)


def command(app: typer.Typer, name: str) -> Callable[[Function], Function]:
    """Add a function to a group as its command of this name.

    In place of its argument `call`, the command takes the options that are the fields of a `Call`; --json comes last.
    The help of an option is what the docstring says of the argument, under `Args:`.
    """

    def add(function: Function) -> Function:
        app.command(name)(_with_options(function))
        return function

    return add


def _with_options(function: Callable[..., None]) -> Callable[..., None]:
    hints = get_type_hints(function, include_extras=True)
    text, *helps = _ARGUMENT.split(inspect.getdoc(function) or "")
    for argument, told in zip(helps[::2], helps[1::2], strict=True):
        kind, shared = get_args(hints[argument])
        info = copy(shared)  # other commands may have the same option, with a help of their own
        info.help = " ".join(told.split())
        hints[argument] = Annotated[kind, info]
    made = hints.get("call")
    own = {} if made is None else get_type_hints(made, include_extras=True)
    options = [
        Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=own[each.name])
        for each in (fields(made) if made else ())
    ]
    before, last = options[:2], options[2:]
    parameters: list[Parameter] = []
    for each in inspect.signature(function).parameters.values():
        rest = [each.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[each.name])]
        parameters += before if each.name == "call" else rest
    signature = inspect.Signature([*parameters, *last])

    @functools.wraps(function)
    def called(**given: Any) -> None:
        call = made(**{key: given.pop(key) for key in own}) if made else None
        try:
            function(**given, **({"call": call} if call else {}))
        except PenstockError as error:
            if call and call.options and "`penstock " in str(error):
                error.add_note(f"Give the commands in this message the options of this call:{call.options}")
            raise

    called.__doc__ = text.rstrip()
    vars(called)["__signature__"] = signature
    called.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
    return called


def tidy_help(command: Any) -> None:
    """Prepare the help of a command, or of a group with its commands, for any width of the terminal.

    A paragraph is one line, which the terminal breaks; otherwise the breaks of its docstring stay where they are. An
    option that takes no value shows no type.

    Args:
        command: the command, which is changed.
    """
    if command.help:
        command.help = _joined(command.help)
    for param in (*command.params, command.get_help_option(typer.Context(command))):
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    for each in getattr(command, "commands", {}).values():
        tidy_help(each)


def _joined(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
YesOnly = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]

STDIN = "-"


def read_text(file: str) -> str:
    """The text of a file, or of standard input if it is `-`.

    Raises:
        NotFoundError: there is no such file.
        ConfigError: it cannot be read.
    """
    try:
        data = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
        return data.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file `{file}`") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"`{file}` cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A question that is asked if there is a terminal and `--yes` was not given."""

    yes: bool
    may_ask: bool
    as_json: bool

    @classmethod
    def of(cls, *, yes: bool, as_json: bool, file: str) -> Confirmation:
        """By the options of the call; `file` is what it reads. Raises ConfigError if they do not go together."""
        if as_json and not yes:
            raise ConfigError("--json cannot ask for confirmation: add --yes")
        return cls(yes, sys.stdin.isatty() and file != STDIN, as_json)

    def refuse_running(self, job: FoundJob) -> None:
        """Raise LeaseHeldError if the job runs, before somebody thinks about an answer. Where nobody is asked, that is
        found out when the job is claimed."""
        from penstock.admin.job.running import refuse_running

        if self.may_ask and not self.yes:
            refuse_running(job)

    def ask(self, question: str, refused: str) -> None:
        """Ask, unless the answer was given with the call.

        Args:
            question: what is asked.
            refused: what is said where the answer is no.

        Raises:
            ConfigError: there is nobody to ask.
            typer.Exit: the answer was no.
        """
        if self.yes:
            return
        if not self.may_ask:
            raise ConfigError(f"{refused}, because there is no terminal to ask for confirmation: add --yes")
        if not typer.confirm(question, err=True):
            say(refused)
            raise typer.Exit(1)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is deleted. Raises as `Confirmation.ask`."""
    Confirmation(yes, sys.stdin.isatty(), as_json=False).ask(question, "nothing was deleted")
