"""The cause of a failure of Spark, without the frames and wrappings of Spark, PySpark and the JVM."""

from __future__ import annotations

import re

from penstock.errors import PenstockError

_TRACEBACK = "Traceback (most recent call last):"
_JAVA = re.compile(r"^(?:: |Caused by: )?((?:[\w$]+\.)+[\w$]*(?:Exception|Error): .+)$")
_UNTELLING = re.compile(r"^(penstock\.errors\.\w+|org\.apache\.spark\.SparkException): ")
"""Exception types that add nothing to their message."""
_BEHIND_PYTHON = re.compile(r"^\s*(at [\w.$]|SQLSTATE: |Driver stacktrace:|\.\.\. \d+ more|Caused by: )")
"""A line of Spark that follows a Python traceback."""


def cause_of(error: BaseException) -> str:
    """The message of the innermost cause, as one line."""
    text = str(error)
    if isinstance(error, PenstockError):
        return text
    found = _python_cause(text) or _java_cause(text) or [line.strip() for line in text.splitlines() if line.strip()][:2]
    return _UNTELLING.sub("", " ".join(found)) or type(error).__name__


def _python_cause(text: str) -> list[str]:
    """The exception at the end of the last Python traceback, which may have several lines."""
    _, begins, traceback = text.rpartition(_TRACEBACK)
    found: list[str] = []
    in_frame = False
    for line in traceback.splitlines() if begins else []:
        if _BEHIND_PYTHON.match(line):
            break
        in_frame = line.startswith('  File "') or (in_frame and line.startswith(" "))
        if in_frame:
            found.clear()
        elif line.strip():
            found.append(line.strip())
    return found


def _java_cause(text: str) -> list[str]:
    return [match[1] for line in text.splitlines() if (match := _JAVA.match(line))][-1:]
