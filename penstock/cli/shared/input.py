"""Input of a command besides its options: a file, and the answer to a question before something is changed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from penstock.admin.job.running import refuse_running
from penstock.admin.jobs import FoundJob
from penstock.cli.shared.errors import say
from penstock.errors import ConfigError, NotFoundError

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
