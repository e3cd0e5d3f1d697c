"""The port that builds a version of a table, its request, and the checks of the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.api.state.side_inputs import PushedTable, TableCandidate
from penstock.base.application_code import not_started
from penstock.base.wording import counted, listed
from penstock.graph.stores import StoreSpec
from penstock.tables.versions.fingerprint import pushed_table
from penstock.tables.versions.manifest import TableFile
from penstock.tables.versions.sources import SourceFolders, SourceVersion, TableRefusedError


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A version to build."""

    spec: StoreSpec
    tasks: int
    source: SourceVersion
    build: str
    """The folder for the files."""
    alone: bool
    """True if no batch runs meanwhile, so that the build may take everything."""

    @property
    def side(self) -> PushedTable:
        return pushed_table(self.spec)


class TableBuilder(SourceFolders, Protocol):
    """Builds the files of versions. All methods but `cancel` are called by one thread."""

    def build(self, request: BuildRequest) -> tuple[TableFile, ...]:
        """Read the source, and put sorted files. Publishes nothing.

        Raises:
            TableRefusedError: the rows are not a table.
            RetryableError: it may succeed when it is repeated.
            ConfigError: it cannot succeed before a person does something.
        """
        ...

    def cancel(self) -> None:
        """Cancel the build that is under way, and any that begins later. May be called by any thread; never raises."""
        ...


def check_columns(request: BuildRequest, needed: Iterable[str], found: Iterable[str]) -> None:
    """Raise TableRefusedError if columns are missing."""
    there = list(found)
    missing = [name for name in needed if name not in there]
    if missing:
        noun = "column" if len(missing) == 1 else "columns"
        raise TableRefusedError(
            f"`{request.source.url}` has no {noun} {listed([f'`{name}`' for name in missing])}; it has "
            f"{listed([f'`{name}`' for name in there]) or 'none'}. Push it with these columns, or change `key=` and "
            f"`value=` of table `{request.spec.name}`"
        )


def files_of(written: Iterable[Mapping[str, Any]], key_columns: tuple[str, ...]) -> tuple[TableFile, ...]:
    """Collect the files that the writers put, in the order of their keys. `written`: rows of `WRITTEN`. Raises
    TableRefusedError, naming all kinds of problems, if a row was no entry."""
    rows = list(written)
    null_keys = sum(row["null_keys"] or 0 for row in rows)
    problems = sorted({row["problem"] for row in rows if row["problem"]})
    if null_keys:
        names = listed([f"`{name}`" for name in key_columns])
        problems.append(
            f"{counted(null_keys, 'row')} {'has' if null_keys == 1 else 'have'} no key: column {names} is null"
        )
    if problems:
        raise TableRefusedError("; ".join(problems))
    fields = TableFile.__dataclass_fields__
    files = [TableFile(**{name: row[name] for name in fields}) for row in rows if row["name"] is not None]
    return tuple(sorted(files, key=lambda file: (file.task, file.first)))


def check_rows(source: SourceVersion, rows: int) -> None:
    """Raise TableRefusedError unless the number of rows is that of the source's manifest."""
    if source.rows is not None and source.rows != rows:
        raise TableRefusedError(
            f"its manifest says {source.rows:,} rows, and its files have {rows:,}. Push the version again"
        )


def check_candidate(side: PushedTable, candidate: TableCandidate) -> None:
    """Ask the user's predicate. Raises TableRefusedError if it says no."""
    if side.check is None:
        return
    try:
        answer = side.check(candidate)
        not_started("the function", answer)
    except Exception as error:
        raise TableRefusedError(f"its check failed: {type(error).__name__}: {error}") from error
    if answer is not None and not answer:
        raise TableRefusedError(f"its check returned {answer!r}, with {candidate.rows:,} rows")
