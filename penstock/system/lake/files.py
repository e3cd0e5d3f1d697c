"""The rows of a Parquet file in the schema of its table, which may have changed since the file was written.

A column of the file is found by a key that stays when the column gets another name: the id of the field in Iceberg, the
physical name in Delta. A column that the file lacks is null, or has a constant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, cast

import obstore
import pyarrow as pa
import pyarrow.parquet
from obstore import exceptions as obstore_errors
from obstore.store import LocalStore, from_url
from pyarrow import fs

from penstock.errors import (
    CorruptError,
    IncompatibleError,
    NotFoundError,
    PenstockError,
    SystemAwayError,
    SystemRefusedError,
)
from penstock.system.rows.reader import opened_inside, opened_parquet, readable, row_batches

Key = Callable[[pa.Field], str | None]
"""Gives the key of a field; None if it has none."""
PARTITIONS = "penstock.partitions"
"""The property of a table that says how many partitions it has as a stream."""
_COUNT = re.compile("[0-9]{1,9}")
_LONGEST_REASON = 1000
_CLIENTS = frozenset(
    {"aiobotocore", "azure", "boto3", "botocore", "google", "obstore", "requests", "sqlalchemy", "urllib3"}
)
"""Packages whose errors tell of a store or a catalog, and not of the bytes that came from it."""


class ColumnSelection:
    """The columns of a table that are to be read."""

    def __init__(self, schema: pa.Schema, columns: Sequence[str] | None, key: Key, file_key: Key) -> None:
        """
        Args:
            schema: that of the table.
            columns: names of columns in the schema; None for all.
            key: gives the key of a field of the schema.
            file_key: gives the key of a field of a file.
        """
        wanted = [field for field in schema if columns is None or field.name in columns]
        self._fields = wanted or list(schema)[:1]  # rows without columns would not be counted
        self._key = key
        self._file_key = file_key
        self.schema = pa.schema([pa.field(field.name, field.type) for field in self._fields])

    def key(self, name: str) -> str | None:
        """The key of a column of the table."""
        return self._key(self.schema.field(name))

    def read(
        self,
        source: IO[bytes] | pa.NativeFile,
        path: str,
        count: int | None,
        first: int,
        rows: int,
        constants: Mapping[str | None, pa.Scalar],
    ) -> Generator[pa.RecordBatch, None, None]:
        """The rows of a Parquet file from a number on.

        Args:
            source: the open file. It is closed at the end.
            path: its name, for errors.
            count: the number of its rows; None if only the file says it.
            first: the number of the first row to read.
            rows: the most rows of a batch.
            constants: values of columns that the file may lack, by key.

        Raises:
            CorruptError: the file is damaged.
            IncompatibleError: a column has a type that does not become that of the table.
        """
        with source, opened_parquet(source, path) as file:
            if count is not None and file.metadata.num_rows != count:
                raise CorruptError(
                    f"`{path}` is damaged: it has {file.metadata.num_rows:,} rows, and the table says {count:,}"
                )
            own = {self._file_key(field): field for field in file.schema_arrow}
            found = [own.get(self._key(field)) for field in self._fields]
            names = [each.name for each in found if each is not None]
            for batch in row_batches(file, first, rows, names):
                columns = []
                for field, each in zip(self._fields, found, strict=True):
                    if each is not None:
                        columns.append(self._fitted(batch.column(each.name), field, path))
                    elif (constant := constants.get(self._key(field))) is not None:
                        columns.append(pa.repeat(constant, batch.num_rows))
                    else:
                        columns.append(pa.nulls(batch.num_rows, field.type))
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _fitted(self, column: pa.Array, field: pa.Field, path: str) -> pa.Array:
        if column.type == field.type:
            return column
        try:
            if pa.types.is_nested(column.type):
                column = column.view(self._renamed(column.type, field.type))
            return column.cast(field.type, safe=not pa.types.is_timestamp(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise IncompatibleError(
                f"column `{field.name}` of `{path}` has the type {column.type}, which does not become {field.type}, "
                f"its type in the table now: {error}"
            ) from error

    def _renamed(self, own: pa.DataType, wanted: pa.DataType) -> pa.DataType:
        """The type of a file with the names that its fields have in the table. Fields that the table does not have get
        names that it does not have either."""
        if pa.types.is_struct(own) and pa.types.is_struct(wanted):
            by_key = {self._key(field): field for field in wanted}
            fields = [(each, by_key.get(self._file_key(each))) for each in own]
            return pa.struct([self._renamed_field(*each, number) for number, each in enumerate(fields)])
        if _is_list(own) and _is_list(wanted):
            kind = pa.large_list if pa.types.is_large_list(own) else pa.list_
            return kind(pa.field("item", self._renamed(own.value_type, wanted.value_type)))
        if pa.types.is_map(own) and pa.types.is_map(wanted):
            key, item = self._renamed(own.key_type, wanted.key_type), self._renamed(own.item_type, wanted.item_type)
            return pa.map_(key, item)
        return own

    def _renamed_field(self, own: pa.Field, wanted: pa.Field | None, number: int) -> pa.Field:
        if wanted is None:
            return pa.field(f"\0{number}", own.type)
        return pa.field(wanted.name, self._renamed(own.type, wanted.type))


class TableFiles:
    """The files of a table, in a folder of this machine or in an object store.

    obstore has the options of delta-rs. The file system of delta-rs keeps Python's lock while it waits for the store:
    with a slow store, all threads of a driver would wait.
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.is_local = "://" not in url
        self._store: Any = LocalStore(url) if self.is_local else _store(url, dict(options))
        self._folder = url if self.is_local else None
        self._local = fs.LocalFileSystem()

    def stamp(self, path: str) -> tuple[int, int] | None:
        """The size of a file, and the time of its last change in milliseconds; None if it is not there."""
        try:
            with _as_os_errors():
                return _stamp(obstore.head(self._store, path))
        except FileNotFoundError:
            return None

    def stamps(self, folder: str) -> Iterator[tuple[str, tuple[int, int]]]:
        """The names of the files in a folder, each with its stamp."""
        with _as_os_errors():
            for found in obstore.list(self._store, f"{folder}/"):
                for each in found:
                    yield each["path"].rpartition("/")[2], _stamp(each)

    def open(self, path: str) -> pa.NativeFile:
        """A file for reading. Raises FileNotFoundError."""
        if self._folder is not None:
            with opened_inside(self._folder, f"{self._folder.rstrip('/')}/{path}") as own:
                return self._local.open_input_file(own)
        with _as_os_errors():
            return pa.PythonFile(_ReadableFile(obstore.open_reader(self._store, path)), mode="r")


class _ReadableFile:
    """A file of obstore as Arrow expects one, with bytes and an end."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        return bytes(self._file.read(None if size < 0 else size))

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        self.closed = True
        self._file.close()


_CLIENT = frozenset(
    ("allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "timeout", "user_agent")
)


def _store(url: str, options: Mapping[str, str]) -> Any:
    """The store without the options that only delta-rs has, such as that of its locks."""
    config, client = dict[str, str](), dict[str, Any]()
    for name, text in options.items():
        bare = re.sub("^(aws|azure|google)_", "", name.lower())
        if bare in _CLIENT:
            client[bare] = text.lower() in ("true", "1") if bare.startswith("allow") else text
        else:
            config[name] = text
    while True:
        try:
            return from_url(url, config=cast("Any", config), client_options=cast("Any", client))
        except obstore_errors.UnknownConfigurationKeyError as error:
            known = {name: text for name, text in config.items() if f"'{name.lower()}'" not in str(error)}
            if len(known) == len(config):
                raise
            config = known


def _stamp(found: Any) -> tuple[int, int]:
    return found["size"], int(found["last_modified"].timestamp() * 1000)


@contextmanager
def _as_os_errors() -> Iterator[None]:
    try:
        yield
    except obstore_errors.NotFoundError as error:
        raise FileNotFoundError(str(error)) from error
    except (obstore_errors.PermissionDeniedError, obstore_errors.UnauthenticatedError) as error:
        raise PermissionError(str(error)) from error
    except obstore_errors.BaseError as error:
        raise OSError(str(error)) from error


def count_rows(source: Any) -> int:
    """The number of rows of a Parquet file, by its end."""
    with source, pa.parquet.ParquetFile(source) as file:
        return int(file.metadata.num_rows)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


@contextmanager
def reading(title: str, path: str, *, is_local: bool) -> Iterator[None]:
    """Errors of the block as errors that name the file.

    Raises:
        NotFoundError: the file is gone.
        CorruptError: it is damaged.
        SystemRefusedError: it must not be read.
        SystemAwayError: its place does not answer.
    """
    what = f"{title}: `{path}`"
    try:
        with _as_os_errors(), readable(f"{what} is damaged"):
            yield
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{what} is gone. It was deleted before it was read to its end, as `VACUUM` and `expire_snapshots` delete "
            "files that the newest rows do not need. Let the table keep them for longer than the job may lag. To "
            "continue with all rows that the table has now, set the startpoint `snapshot`"
        ) from error
    except PermissionError as error:
        raise SystemRefusedError(f"{what} cannot be read: {error}. Let this user read there") from error
    except OSError as error:
        if is_local and error.errno is None:  # packed data that is cut off
            raise CorruptError(f"{what} is damaged: {error}") from error
        raise SystemAwayError(f"{what} cannot be read: {error}") from error


@contextmanager
def parsing(what: str) -> Iterator[None]:
    """Turn whatever a library of tables raises over a log that it does not read into a CorruptError that begins with
    `what`. Errors of Penstock, of the operating system, of clients, and too little memory pass."""
    try:
        yield
    except (PenstockError, OSError, MemoryError):
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] in _CLIENTS:
            raise
        raise CorruptError(f"{what} is damaged: {type(error).__name__}: {str(error)[:_LONGEST_REASON]}") from error


def partitions_in(noted: str | None, title: str) -> int | None:
    """The number of partitions that a table's properties name. Raises CorruptError if it is none."""
    if noted is None or (_COUNT.fullmatch(noted) and int(noted)):
        return None if noted is None else int(noted)
    raise CorruptError(f"{title} has the property `{PARTITIONS}` with the value {noted!r:.100}: write a number there")
