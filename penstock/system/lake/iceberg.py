"""Iceberg tables, by PyIceberg.

Marks are properties of the table, `penstock.mark.<writer>/<partition>`. Every commit appends, if only no row: Iceberg
compares the last snapshot at a commit, so that one which has not seen another's marks fails.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial

import pyarrow as pa
from pyiceberg import exceptions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table as IcebergTable

from penstock.errors import ConfigError, CorruptError, NotFoundError, SystemAwayError
from penstock.system.base import Progress
from penstock.system.contract.writer import WriterMark
from penstock.system.lake.files import PARTITIONS, parsing, partitions_in
from penstock.system.lake.iceberg_log import IcebergLog, Outside
from penstock.system.lake.iceberg_manifests import checked
from penstock.system.lake.tables import ConflictError, Lake, LakeTable

try:
    from sqlalchemy.exc import SQLAlchemyError

    _AWAY: tuple[type[Exception], ...] = (OSError, exceptions.RESTError, SQLAlchemyError)
except ImportError:  # only catalogs in databases need it
    _AWAY = (OSError, exceptions.RESTError)
_MARK = "penstock.mark"
_FORM = re.compile(r"(\d+)(?: (\d+) (\d+))?")


@dataclass(frozen=True, slots=True)
class IcebergLake(Lake):
    """The tables of a namespace in a catalog.

    Args:
        name: of the catalog.
        namespace: the namespace, with dots between its parts.
        settings: PyIceberg's, of the catalog.
        outside: the treatment of data files that are not below a table's location.
    """

    name: str
    namespace: str
    settings: Mapping[str, str] = field(repr=False)
    outside: Outside = "refuse"

    def open(self, stream: str) -> IcebergLakeTable:
        return IcebergLakeTable(self.namespace, stream, self._load(stream))

    def log(self, stream: str) -> IcebergLog:
        title = f"the Iceberg table `{self.namespace}.{stream}`"
        return IcebergLog(title, partial(self._load, stream), partial(_errors, self.namespace, stream), self.outside)

    def create(self, stream: str, schema: pa.Schema, partitions: int) -> bool:
        with _errors(self.namespace, stream):
            catalog = self._catalog()
            with contextlib.suppress(exceptions.NamespaceAlreadyExistsError):
                catalog.create_namespace(self.namespace)
            try:
                catalog.create_table(self._path(stream), schema, properties={PARTITIONS: str(partitions)})
            except exceptions.TableAlreadyExistsError:
                return False
            return True

    def names(self) -> list[str]:
        with _errors(self.namespace, "*"):
            try:
                return sorted(path[-1] for path in self._catalog().list_tables(self.namespace))
            except exceptions.NoSuchNamespaceError:
                return []

    def _load(self, stream: str) -> IcebergTable:
        what = f"the metadata of the Iceberg table `{self.namespace}.{stream}`"
        with _errors(self.namespace, stream):
            catalog = self._catalog()
        with parsing(what), _errors(self.namespace, stream):
            try:
                return checked(catalog.load_table(self._path(stream)))
            except (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError) as error:
                raise NotFoundError(
                    f"the catalog `{self.name}` has no Iceberg table `{self.namespace}.{stream}`: create it, or "
                    "correct `namespace` or `catalog.*`"
                ) from error

    def _catalog(self) -> Catalog:
        return _catalog(self.name, tuple(sorted(self.settings.items())))

    def _path(self, stream: str) -> tuple[str, ...]:
        return (*self.namespace.split("."), stream)


@lru_cache(maxsize=8)
def _catalog(name: str, settings: tuple[tuple[str, str], ...]) -> Catalog:
    """One catalog for all tables of a process: it holds connections."""
    try:
        return load_catalog(name, **dict(settings))
    except (ValueError, ImportError) as error:
        raise ConfigError(f"the Iceberg catalog `{name}` cannot be opened: {error}") from error


class IcebergLakeTable(LakeTable):
    """An Iceberg table."""

    def __init__(self, namespace: str, stream: str, table: IcebergTable) -> None:
        self._namespace = namespace
        self._stream = stream
        self._table = table

    @property
    def schema(self) -> pa.Schema:
        found = self._table.schema().as_arrow()
        return pa.schema([pa.field(each.name, _plain(each.type), nullable=each.nullable) for each in found])

    @property
    def identity(self) -> str:
        return str(self._table.metadata.table_uuid)

    @property
    def version(self) -> int:
        snapshot = self._table.metadata.current_snapshot()
        return 0 if snapshot is None else snapshot.sequence_number or 0

    @property
    def partitions(self) -> int | None:
        return partitions_in(
            self._table.properties.get(PARTITIONS), f"the Iceberg table `{self._namespace}.{self._stream}`"
        )

    def note_partitions(self, count: int) -> None:
        with _errors(self._namespace, self._stream), self._table.transaction() as transaction:
            transaction.set_properties({PARTITIONS: str(count)})

    def mark(self, writer: str, partition: int) -> WriterMark | None:
        text = self._table.properties.get(f"{_MARK}.{writer}/{partition}")
        if text is None:
            return None
        found = _FORM.fullmatch(text)
        if found is None:
            raise CorruptError(f"the property `{_MARK}.{writer}/{partition}` of `{self._stream}` is no mark: {text!r}")
        epoch, slot, chunk = found.groups()
        return WriterMark(int(epoch), None if slot is None else Progress(int(slot), int(chunk)))

    def append(self, rows: pa.Table | None, writer: str, marks: Mapping[int, WriterMark]) -> None:
        changed = {}
        for partition, (epoch, progress) in marks.items():
            before = self.mark(writer, partition)
            done = progress or (before.progress if before is not None else None)
            changed[f"{_MARK}.{writer}/{partition}"] = (
                str(epoch) if done is None else f"{epoch} {done.slot} {done.chunk}"
            )
        # PyIceberg would repeat the commit on a newer snapshot, whose marks it does not look at.
        self._table.metadata.properties["commit.retry.num-retries"] = "0"
        with _errors(self._namespace, self._stream), self._table.transaction() as transaction:
            transaction.append(self.schema.empty_table() if rows is None else rows)
            if changed:
                transaction.set_properties(changed)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without Iceberg's large strings and ids of fields."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _plain(each.type), nullable=each.nullable) for each in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = kind.value_field
        return pa.list_(pa.field(item.name, _plain(item.type), nullable=item.nullable))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return kind


@contextlib.contextmanager
def _errors(namespace: str, stream: str) -> Iterator[None]:
    try:
        yield
    except exceptions.CommitFailedException as error:
        raise ConflictError(f"the Iceberg table `{namespace}.{stream}`: {error}") from error
    except (
        exceptions.BadRequestError,
        exceptions.UnauthorizedError,
        exceptions.ForbiddenError,
        exceptions.OAuthError,
    ) as error:
        what = f"the catalog refuses the Iceberg table `{namespace}.{stream}`"
        raise ConfigError(f"{what}: {type(error).__name__}: {error}. Correct `catalog.*`") from error
    except _AWAY as error:
        what = f"the Iceberg table `{namespace}.{stream}` cannot be read or written"
        raise SystemAwayError(f"{what}: {type(error).__name__}: {error}") from error
