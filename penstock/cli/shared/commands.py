"""Options and commands in messages, as they can be pasted: with the job, application and configuration of the call."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OPTIONS = {
    "app": "--app",
    "assignments": "-c",
    "clamp": "--clamp",
    "file": "--config",
    "force": "--force",
    "from_checkpoint": "--from",
    "function": "--map",
    "operator": "--operator",
    "raw": "--raw",
    "replace": "--replace",
    "reset_operators": "--reset-operator",
    "task": "--task",
    "with_state": "--with-state",
}
"""Argument -> option."""
_ARGUMENT = re.compile(rf'`({"|".join(OPTIONS)})=(?:True|\.\.\.|\[?"([^"`]*)"\]?)`')

_QUOTED = re.compile(r"`(penstock [a-z][^`]*)`")
_JOB = re.compile(r"(?<=\s)JOB(?=\s|$)")
_ASSIGNMENT = re.compile(r"(?s)((?:-c)?([^=]+)=).+")
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")


class _Call:
    """The arguments of the running command."""

    file: Path | None = None
    assignments: Sequence[str] = ()
    job: str | None = None
    application: str | None = None


def forget_call() -> None:
    """A command begins: nothing is known of how it was called."""
    _Call.file, _Call.assignments, _Call.job, _Call.application = None, (), None, None


def remember_file(file: Path | None) -> Path | None:
    """The callback of `--config`."""
    _Call.file = file
    return file


def remember_assignments(assignments: list[str] | None) -> list[str] | None:
    """The callback of `-c`."""
    _Call.assignments = assignments or ()
    return assignments


def remember_job(job: str | None) -> str | None:
    """The callback of the argument `JOB`."""
    _Call.job = job
    return job


def remember_application(application: str) -> str:
    """The callback of the argument `APP` of `penstock run`."""
    _Call.application = application
    return application


def for_people(text: str) -> str:
    """A message of the library as the command line prints it: its arguments as options, its commands as they can be
    pasted.

    Example:
        >>> forget_call()
        >>> _ = remember_file(Path("my job.yaml")), remember_job("flights")
        >>> for_people("`penstock checkpoint list` lists its checkpoints, `penstock status JOB` shows it")
        "`penstock checkpoint list flights --config 'my job.yaml'` lists its checkpoints, ..."
        >>> forget_call()
    """
    text = with_options(text)
    return _QUOTED.sub(lambda found: f"`{as_pasted(found[1])}`", text) if "`penstock " in text else text


def as_pasted(command: str) -> str:
    """A command of `penstock` with the job, the application and the configuration of the call, where it lacks them.

    What only names a command, without the arguments that it requires, stays as it is.
    """
    if _Call.job is not None:
        command = _JOB.sub(shlex.quote(_Call.job), command)
    if _Call.application is not None:
        command = command.replace("penstock run ...", f"penstock run {shlex.quote(_Call.application)}", 1)
    try:
        words = shlex.split(command)[1:]
    except ValueError:  # a quote is not closed
        return command
    names, found = _find(words)
    if found is None:
        return command
    given = _given(found, words[len(names) :])
    lacking = [param for param in found.params if param.required and given.get(param.name) is None]
    if [param.metavar for param in lacking] == ["JOB"] and _Call.job is not None:
        called = " ".join(["penstock", *names])
        command = f"{called} {shlex.quote(_Call.job)}{command.removeprefix(called)}"
    elif lacking:
        return command
    has = {param.name for param in found.params}
    if "config" in has and _Call.file is not None and given.get("config") is None:
        command += f" --config {shlex.quote(str(_Call.file))}"
    if "assignments" in has and not given.get("assignments"):
        command += "".join(f" -c {_shown(each)}" for each in _Call.assignments)
    return command


def without_secrets(words: Sequence[str]) -> str:
    """A call of `penstock` with these arguments, as others may read it.

    Example:
        >>> without_secrets(["stop", "my job", "-c", "job.root.key=0123", "-cjob.root=s3://me:pass@bucket/jobs"])
        "penstock stop 'my job' -c job.root.key=... -cjob.root=s3://...@bucket/jobs"
    """

    def shown(word: str) -> str:
        found = _ASSIGNMENT.fullmatch(word)
        return f"{found[1]}..." if found and is_secret(found[2]) else shlex.quote(_USER_INFO.sub("...", word))

    from penstock.config.secrets import is_secret

    return " ".join(["penstock", *map(shown, words)])


def _shown(assignment: str) -> str:
    from penstock.config.secrets import is_secret

    key, _, _ = assignment.partition("=")
    return f"{key}=..." if is_secret(key) else shlex.quote(assignment)


def _find(words: Sequence[str]) -> tuple[list[str], Any]:
    """The names of the command, and the command; None if there is no such command."""
    from penstock.cli.main import COMMANDS

    if not words or words[0] not in COMMANDS:
        return [], None
    names, found = [words[0]], COMMANDS[words[0]].load(words[0])
    for word in words[1:]:
        commands = getattr(found, "commands", None)
        if commands is None:
            break
        if word not in commands:
            return names, None
        names, found = [*names, word], commands[word]
    return names, None if hasattr(found, "commands") else found


def _given(command: Any, arguments: Sequence[str]) -> Mapping[str, Any]:
    """By parameter; empty if the arguments are not of this command."""
    context = command.context_class(command, info_name=command.name, resilient_parsing=True)
    values, _, _ = command.make_parser(context).parse_args(list(arguments))
    return dict(values)


def with_options(text: str) -> str:
    """A message of the library with options in place of arguments (`penstock.wording.argument`).

    Example:
        >>> with_options('to begin without state, give `with_state="clear"`')
        'to begin without state, give --with-state clear'
    """
    return _ARGUMENT.sub(lambda found: " ".join(filter(None, (OPTIONS[found[1]], found[2]))), text)
