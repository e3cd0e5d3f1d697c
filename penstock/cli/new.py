"""`penstock new`."""

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
from penstock.cli.shared.errors import say
from penstock.errors import ConfigError

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
