"""Writes docs/commands.md: `python -m tools.commands_page > docs/commands.md`."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from penstock.cli.main import COMMANDS

COMMON = ("--config", "-c", "--json", "--debug")
EXAMPLES = {
    "new": "penstock new shop-totals",
    "run": "penstock run job.py:app --config job.yaml --until latest",
    "status": "penstock status flights --watch",
    "dashboard": "penstock dashboard flights --config job.yaml",
    "logs": "penstock logs flights -n 50",
    "check": "penstock check job.py:app --config job.yaml",
    "simulate": "penstock simulate job.py:app --inputs trips.jsonl --seeds 1000",
    "drain": "penstock drain flights --wait",
    "stop": "penstock stop flights --wait",
    "fork": "penstock fork flights what-if --from before-deploy",
    "replay": "penstock replay flights job.py:app --key N14228 --from before-deploy",
    "shadow": "penstock shadow flights changed.py:app --against job.py:app --from latest-1",
    "deploy": "penstock deploy flights changed.py:app -c job.name=flights-2",
    "job detach": "penstock job detach what-if",
    "job delete": "penstock job delete flights --config job.yaml",
    "job adopt": "penstock job adopt flights -c job.root=s3://bucket/copy",
    "job sign": "penstock job sign flights -c job.root.key=file:root.key",
    "job audit": "penstock job audit flights --limit 10",
    "checkpoint list": "penstock checkpoint list flights",
    "checkpoint show": "penstock checkpoint show flights",
    "checkpoint label": "penstock checkpoint label flights latest before-deploy",
    "checkpoint unlabel": "penstock checkpoint unlabel flights before-deploy",
    "checkpoint export": "penstock checkpoint export flights > flights.jsonl",
    "checkpoint set": "penstock checkpoint set flights --offsets offsets.json",
    "checkpoint import": "penstock checkpoint import flights flights.jsonl",
    "startpoint set": "penstock startpoint set flights --stream kafka.flights --all-partitions --timestamp '2h ago'",
    "startpoint import": "penstock startpoint import flights startpoints.jsonl --dry-run",
    "startpoint list": "penstock startpoint list flights",
    "startpoint delete": "penstock startpoint delete flights --stream kafka.flights --partition 3",
    "startpoint export": "penstock startpoint export flights > startpoints.jsonl",
    "state list": "penstock state list flights",
    "state get": "penstock state get flights aircraft N14228 --version latest-1",
    "state scan": "penstock state scan flights aircraft --prefix N1 --json",
    "state diff": "penstock state diff flights aircraft --from 40 --to latest",
    "state verify": "penstock state verify flights",
    "state gc": "penstock state gc flights --dry-run",
    "state edit": "penstock state edit flights aircraft --set N14228=7 --delete N10156 --dry-run",
    "state import-spark": "penstock state import-spark job.py:app s3://bucket/checkpoint --store aircraft",
    "state repartition": "penstock state repartition job.py:app --tasks 8 --config job.yaml --dry-run",
    "stream create": "penstock stream create kafka.flights --partitions 8 --retention 7d --config job.yaml",
    "stream publish": "penstock stream publish flights --file flights.jsonl --key tailnum",
    "stream describe": "penstock stream describe kafka.flights --config job.yaml",
    "stream tail": "penstock stream tail flights --from-beginning -n 5",
    "stream list": "penstock stream list kafka --config job.yaml",
    "stream delete": "penstock stream delete flights",
    "stream retain": "penstock stream retain flights --retention 3d",
    "stream end": "penstock stream end flights",
    "stream replay": "penstock stream replay dead",
    "table versions": "penstock table versions flights planes",
    "table use": "penstock table use flights planes 7",
    "config check": "penstock config check job.py:app --config job.yaml",
    "config keys": "penstock config keys latency",
}
"""An example of each command. Calls are checked against the commands, and not made."""
_INTRODUCTION = """\
# Commands

<!-- Generated: python -m tools.commands_page > docs/commands.md -->

`penstock COMMAND --help` prints the same texts.

Commands find a job by its root. Call them with the configuration of the job, or with `-c job.root=...`; without either,
they look in `.penstock/jobs` below the working directory, or in the folder that `PENSTOCK_HOME` names. Most commands
have these options:

- `--config FILE`: the configuration, a YAML or properties file.
- `-c KEY=VALUE`: sets a configuration key; may be repeated. It counts more than the file.
- `--json`: prints only JSON to standard output.

`penstock --version` prints the version. `penstock --debug COMMAND` shows the Python traceback of a failure. The exit
status is 0 after success, 2 after a mistake in the call or the configuration, and 1 after any other failure.
"""


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that can be called, with its name: `run`, `stream create`."""
    for name, entry in COMMANDS.items():
        loaded = entry.load(name)
        inner = getattr(loaded, "commands", None)
        yield from [(name, loaded)] if inner is None else ((f"{name} {each}", inner[each]) for each in inner)


def markdown() -> str:
    """The page: a section for each command, and for each group of commands."""
    parts, group = [_INTRODUCTION], ""
    for name, command in commands():
        first, _, second = name.partition(" ")
        if first != group:
            group = first
            parts.append(f"\n## penstock {first}\n" + (f"\n{COMMANDS[first].help}\n" if second else ""))
        parts.append((f"\n### {first} {second}\n" if second else "") + _section(name, command))
    return "".join(parts)


def _section(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    own = [each for each in options if each.opts[0] not in COMMON]
    common = [f"`{each.opts[0]}`" for each in options if each.opts[0] in COMMON[:3]]
    call = " ".join(["penstock", name, *map(_argument, arguments), *map(_needed, (o for o in own if o.required))])
    items = [f"{_names(each)}: {_help(each)}" for each in (*arguments, *own)]
    return "\n".join(
        [
            "\n" + "\n\n".join(map(_wrapped, command.help.split("\n\n"))) + "\n",
            f"```\n{call}\n```\n",
            *(_wrapped(f"- {item}") for item in items),
            *([f"- and {', '.join(common)}"] if common else []),
            f"\n```sh\n{EXAMPLES[name]}\n```\n",
        ]
    )


def _wrapped(text: str) -> str:
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _argument(argument: Any) -> str:
    name = (argument.metavar or argument.name).upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _needed(option: Any) -> str:
    return f"{option.opts[0]} {_value(option)}"


def _names(option: Any) -> str:
    if option.param_type_name == "argument":
        return f"`{_argument(option)}`"
    names = [*option.opts, *option.secondary_opts]
    return ", ".join(f"`{' '.join(filter(None, (name, _value(option))))}`" for name in names)


def _value(option: Any) -> str:
    if option.metavar is not None:
        return str(option.metavar)
    kind = option.type_descriptor.annotation
    words = get_args(kind) if get_origin(kind) is Literal else [each.value for each in kind]
    return "|".join(words)


def _help(parameter: Any) -> str:
    text = re.sub(r"(`[^`]*`)|(?<![\w-])(--[a-z][a-z-]*)", lambda m: m[1] or f"`{m[2]}`", parameter.help)
    facts = ["required"] if parameter.required and parameter.param_type_name == "option" else []
    if parameter.default not in (None, False, [], ()) and not callable(parameter.default):
        facts.append(f"by default `{_default(parameter)}`")
    return f"{text} ({', '.join(facts)})" if facts else text


def _default(parameter: Any) -> str:
    return parameter.opts[0] if parameter.default is True else str(parameter.default)


if __name__ == "__main__":
    sys.stdout.write(markdown())
