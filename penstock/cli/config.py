"""`penstock new`: a new project; and `penstock config check` and `keys`: the configuration of one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from penstock import __version__
from penstock.admin.configuration import EffectiveValue, check_configuration, effective_values, key_facts
from penstock.admin.jobs import load_without_job
from penstock.base.wording import counted
from penstock.cli.shared.application import load_application
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import AsJson, JsonCall, command
from penstock.cli.shared.output import print_json, show
from penstock.config.load import load_config
from penstock.errors import ConfigError
from penstock.facts import Facts, FactTable

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 40
"""Kubernetes, for example, has names of 63 characters, some of which are for endings."""


def new(name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Make a folder with a job, its test, its configuration and a Dockerfile.

    Args:
        name: The name of the job and of its folder, for example `shop-totals`.
    """
    make_project(name, Path.cwd())
    say(f"made the folder {name}. Try it:")
    print(f"cd {name}\npytest\npenstock run job.py:app --config job.yaml --until latest")


def make_project(name: str, parent: Path) -> None:
    """Make the folder of a new project: all of it, or nothing.

    Raises:
        ConfigError: the name cannot be one of a job, an image and a folder; there is something under this name already;
            or the folder cannot be written.
    """
    if len(name) > _LONGEST or _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"`{name}` cannot be the name of a project: write lower-case letters, digits and single hyphens, beginning "
            f"with a letter, {_LONGEST} characters at most, for example `shop-totals`"
        )
    target = parent / name
    try:
        with TemporaryDirectory(prefix=f".{name}-", dir=parent) as scratch:
            made = Path(scratch) / name
            for path, text in _rendered(files("penstock.cli") / "project", Path(), name):
                (made / path).parent.mkdir(parents=True, exist_ok=True)
                (made / path).write_text(text, encoding="utf-8")
            made.rename(target)  # replaces an empty folder, and nothing else
    except OSError as error:
        if target.exists():
            raise ConfigError(f"there is a `{target}` already: choose another name, or move it away") from error
        raise ConfigError(f"the folder `{target}` cannot be made: {error.strerror or error}") from error


def _rendered(folder: Traversable, place: Path, name: str) -> Iterator[tuple[Path, str]]:
    """The path and the text of each file of a project. A template named `_x` is the file `.x`, and `x.in` is `x`."""
    for each in folder.iterdir():
        path = place / re.sub(r"^_", ".", each.name).removesuffix(".in")
        if each.is_dir():
            yield from _rendered(each, path, name)
        else:
            yield path, each.read_text(encoding="utf-8").replace("@name@", name).replace("@version@", __version__)


app = typer.Typer(help="Check a configuration, or list the keys.", no_args_is_help=True)


@command(app, "check")
def check(
    application: Annotated[str | None, typer.Argument(metavar="APP")] = None,
    *,
    call: JsonCall,
    all_keys: Annotated[bool, typer.Option("--all")] = False,
) -> None:
    """Print the values that are set and where each comes from, or all mistakes. JSON always has all keys.

    Args:
        application: Check it against this application, too: module:object or file.py:object.
        all_keys: Show keys that have their defaults, too.
    """
    if application is None:
        loaded, graph = load_without_job(call.config, call.assignments), None
    else:
        app = load_application(application).app
        graph = app.graph()
        stores = [store.name for store in graph.stores]
        loaded = load_config(call.config, assignments=call.assignments or (), default_job_name=app.name, stores=stores)
    check_configuration(graph, loaded)
    values = effective_values(loaded, graph)
    if call.as_json:
        print_json(values)
    else:
        _show(values if all_keys else [each for each in values if each.key in loaded.origins], len(values))


@command(app, "keys")
def keys(text: Annotated[str | None, typer.Argument(metavar="TEXT")] = None, as_json: AsJson = False) -> None:
    """List every key, what it means and its default.

    Args:
        text: Only keys whose name contains this text.
    """
    facts = key_facts(text)
    if as_json:
        print_json(facts)
    else:
        show(Facts({}, (FactTable("", facts),)))


def _show(values: list[EffectiveValue], known: int) -> None:
    show(Facts({}, (FactTable("", values),)))
    if len(values) < known:
        say(f"{counted(known - len(values), 'other key')} have their defaults; `--all` shows them")
