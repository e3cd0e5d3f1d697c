"""Writes docs/configuration.md: `python -m penstock.config.reference > docs/configuration.md`."""

from __future__ import annotations

import sys

from penstock.config.key import AnyKey
from penstock.config.settings import describe
from penstock.config.values.kinds import Bytes, Millis

_SECTIONS = (
    ("Job", ("job.", "container.")),
    ("Task", ("task.",)),
    ("Streams and systems", ("samza.", "systems.", "streams.")),
    ("Stores", ("stores.", "state.", "side.", "tables.")),
    ("Schema registry", ("schema.",)),
    ("Metrics", ("metrics.",)),
    ("Application", ("app.",)),
    ("Spark", ("spark.",)),
)

_INTRODUCTION = """\
# Configuration

<!-- Generated: python -m penstock.config.reference > docs/configuration.md -->

A configuration is a set of flat, dotted keys. Keys of Samza keep their names; [samza.md](samza.md) says what replaces
those that Penstock does not have. Values are merged from these sources, of which a later one overrides an earlier one:
the defaults below, a file (`--config`), values given in Python, `-c key=value`.

* A file is YAML (`.yaml`, `.yml`, `.json`) or Java properties (`.properties`), in UTF-8. YAML may be nested
  or flat: `job: {name: flights}` and `job.name: flights` mean the same. An empty value means the
  default, in a file and as `-c key=`.
* A duration is a number of milliseconds, or a number with a unit: `500ms`, `10s`, `5min`, `2h`, `1d`.
* A size is a number of bytes, or a number with a unit: `512KB`, `64MB`, `2GB`, in powers of 1024.
* A list is written `a,b`, in YAML also `[a, b]`.
* A secret need not be in the file: `${file:PATH}`, `${env:NAME}` and `${cmd:COMMAND}` in a value stand for what a file
  has, what a variable of the environment has, and what a command writes to its standard output (without a shell, within
  a minute). Keys whose names say that they are secret, such as passwords, tokens and access keys, also take
  `file:PATH`, `env:NAME` and `cmd:COMMAND` as the whole value. The driver reads them once, at the start. Nothing shows
  such a value, nor that of a secret key. `-c` refuses secrets themselves, because other users of the machine can read
  command lines.
* `<home>` is the folder that `PENSTOCK_HOME` names, or `.penstock` in the working directory.
* The name of a store or stream may contain dots; a system's may not.
* One file may serve several jobs: `jobs.<job name>.<key>` sets a key for that job alone, and counts more than the key
  itself in the same source. Sections of other jobs are not looked at. `job.name` cannot be in a section, and `job.root`
  should not: commands look for jobs in one root.

An unknown key or a wrong value is an error that names its origin. All errors are reported together.
"""


def markdown() -> str:
    parts = [_INTRODUCTION]
    for title, prefixes in _SECTIONS:
        rows = "".join(_row(key) for key in describe() if key.name.startswith(prefixes))
        parts.append(f"\n## {title}\n\n| Key | Meaning | Value | Default | From |\n|---|---|---|---|---|\n{rows}")
    return "".join(parts)


def _row(key: AnyKey) -> str:
    return f"| `{key.name}` | {key.description} | {_value(key)} | {_default(key)} | {key.source} |\n"


def _value(key: AnyKey) -> str:
    kind = key.kind
    if isinstance(kind, (Millis, Bytes)):
        noun = "duration" if isinstance(kind, Millis) else "size"
        least = "" if kind.minimum is None else f", at least {kind.minimum}"
        return f"{noun} ({kind.unit}){least}"
    return kind.expected.replace("|", "\\|")


def _default(key: AnyKey) -> str:
    if key.fallback is not None:
        return f"that of `{key.fallback.name}`"
    if key.default is None:
        return key.unset
    return f"`{key.default}`{_readable(key)}"


def _readable(key: AnyKey) -> str:
    if not isinstance(key.kind, (Millis, Bytes)) or key.default is None:
        return ""
    names = ("d", "h", "min", "s") if isinstance(key.kind, Millis) else ("GB", "MB", "KB")
    number = int(key.default)
    for name in names:
        factor = key.kind.factors[name.lower()]
        if number and number % factor == 0:
            return f" ({number // factor} {name})"
    return ""


if __name__ == "__main__":
    sys.stdout.write(markdown())
