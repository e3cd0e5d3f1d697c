"""Arguments of the library as options of the command line, and calls of `penstock` as text without secrets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from penstock.base.secrets import is_secret, without_secrets

OPTIONS = {
    "accept_state": "--accept-state",
    "app": "--app",
    "as_hex": "--hex",
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
