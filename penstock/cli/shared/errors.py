"""Messages for people and reports of failures, on standard error, with options in place of arguments."""

from __future__ import annotations

import logging
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from importlib.machinery import PathFinder
from typing import Any

import typer
from typer.core import TyperGroup

from penstock.base.secrets import PROGRAM, is_secret, without_secrets
from penstock.base.wording import escaped
from penstock.errors import ConfigError, FailedMessage, PenstockError, UserCodeError

_ARGUMENTS = "penstock.arguments"


class ApplicationLoadError(ConfigError):
    """The application's module raised while it was imported or built. `user_traceback` begins in the user's code."""

    def __init__(self, message: str, user_traceback: str) -> None:
        self.user_traceback = user_traceback
        super().__init__(message)


class _Tracebacks:
    wanted = False


def show_tracebacks(wanted: bool) -> bool:
    """The callback of `--debug`, which may stand before or behind the command."""
    _Tracebacks.wanted = _Tracebacks.wanted or wanted
    return wanted


def tracebacks_wanted() -> bool:
    return _Tracebacks.wanted


class ReportingGroup(TyperGroup):
    """The root command: turns an error of Penstock into a message and an exit status."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Keep the arguments for the audit log."""
        ctx.meta[_ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        _Tracebacks.wanted = bool(ctx.params.get("debug"))
        print_notices()
        program = PROGRAM.set(f"penstock {words_without_secrets(ctx.meta[_ARGUMENTS])}")
        try:
            return super().invoke(ctx)
        except PenstockError as error:
            report(error)
            raise typer.Exit(error.exit_status) from error
        except Exception as error:
            _name_commands(error)
            raise
        finally:
            PROGRAM.reset(program)


def _name_commands(error: Exception) -> None:
    """List the commands of the group if it has none like the one that was named."""
    context, message = getattr(error, "ctx", None), getattr(error, "message", "")
    if context is not None and message.startswith("No such command") and "Did you mean" not in message:
        commands = ", ".join(f"'{name}'" for name in context.command.list_commands(context))
        error.message = f"{message} Commands: {commands}."  # type: ignore[attr-defined]


def print_notices() -> None:
    """From now on what `penstock.admin` logs is printed: a warning, or a note. Idempotent."""

    class Printed(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(f"{'warning' if record.levelno >= logging.WARNING else 'note'}: {record.getMessage()}")

    logger = logging.getLogger("penstock.admin")
    if not logger.handlers:
        logger.addHandler(Printed())
        logger.setLevel(logging.INFO)


def report(error: PenstockError) -> None:
    """Tell a failure. The user's own traceback comes first, if there is one."""
    if _Tracebacks.wanted:
        _print(_python_traceback(error))
    if isinstance(error, UserCodeError):
        report_failed_message(error.failed, None)
        return
    if isinstance(error, ApplicationLoadError):
        _print(error.user_traceback)
    say("\n".join([f"error: {error}", *getattr(error, "__notes__", ())]))


def report_failed_message(failed: FailedMessage, last_checkpoint: str | None) -> None:
    """The user's traceback, the message it happened at, and the checkpoint that the state is of."""
    _print(failed.traceback if failed.traceback.strip() else failed.reason)
    say(f"error: the application failed in {failed.place}")
    state = f"The state is as of checkpoint {last_checkpoint}. " if last_checkpoint else ""
    if failed.offset < 0 and not failed.sender:
        say(f"{state}Correct the application and run it again")
        return
    if failed.store:
        say(
            f"{state}Side inputs have no dead letters: let the processor of store `{failed.store}` return nothing for "
            f"such messages, or fill `{failed.stream}` without them. Then run the application again"
        )
        return
    say(
        f"{state}Correct the application or the message and run it again, or set `task.dead.letter.stream` to send "
        "such messages to a stream"
    )


def hidden_package(error: BaseException) -> str:
    """If an import failed because a file or folder beside the application hides an installed package: which one does,
    and what to do. Otherwise empty."""
    if not isinstance(error, ImportError) or not error.name:
        return ""
    name = error.name.partition(".")[0]
    first, second = (PathFinder.find_spec(name, path) for path in (sys.path[:1], sys.path[1:]))
    used = getattr(sys.modules.get(name), "__spec__", None)
    if first is None or second is None or used is None or used.origin != first.origin:
        return ""
    return f"`{sys.path[0]}` has a `{name}`, which hides the installed package `{name}`. Give it another name"


def report_unexpected(error: BaseException) -> None:
    """Something that is no error of Penstock: a bug, or a library that failed."""
    if _Tracebacks.wanted:
        _print(_python_traceback(error))
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = f": {lines[0]}" if lines else ""
    say(f"error: unexpected {type(error).__name__}{text}")
    if hint := hidden_package(error):
        say(hint)
    if not _Tracebacks.wanted:
        say("`penstock --debug ...` shows the traceback")


def say(text: str) -> None:
    """One message for people, to standard error, with options in place of arguments."""
    print(escaped(without_secrets(with_options(text))), file=sys.stderr, flush=True)


def _print(text: str) -> None:
    print(escaped(without_secrets(text.rstrip())), end="\n\n", file=sys.stderr)


def _python_traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


OPTIONS = {
    "accept_state": "--accept-state",
    "app": "--app",
    "as_hex": "--hex",
    "assignments": "-c",
    "clamp": "--clamp",
    "deletes": "--delete",
    "file": "--config",
    "force": "--force",
    "from_checkpoint": "--from",
    "function": "--map",
    "operator": "--operator",
    "raw": "--raw",
    "replace": "--replace",
    "reset_operators": "--reset-operator",
    "rules": "--rule",
    "task": "--task",
    "with_output": "--with-output",
    "with_state": "--with-state",
}
"""Argument -> option."""
_ARGUMENT = re.compile(rf'`({"|".join(OPTIONS)})=(?:True|\.\.\.|\[?"([^"`]*)"\]?)`')
_ASSIGNMENT = re.compile(r"(?s)((?:-c)?([^=]+)=).+")


def words_without_secrets(words: Sequence[str]) -> str:
    """The words of a command line, as others may read them.

    Example:
        >>> words_without_secrets(["stop", "my job", "-c", "job.root.key=0123", "-cjob.root=s3://me:pass@bucket/jobs"])
        "stop 'my job' -c job.root.key=... -cjob.root=s3://...@bucket/jobs"
    """

    def shown(word: str) -> str:
        found = _ASSIGNMENT.fullmatch(word)
        return f"{found[1]}..." if found and is_secret(found[2]) else shlex.quote(without_secrets(word))

    return " ".join(map(shown, words))


def with_options(text: str) -> str:
    """A message of the library with options in place of arguments (`penstock.base.wording.argument`).

    Example:
        >>> with_options('to begin without state, give `with_state="clear"`')
        'to begin without state, give --with-state clear'
    """
    return _ARGUMENT.sub(lambda found: " ".join(filter(None, (OPTIONS[found[1]], found[2]))), text)
