"""Reading records, one JSON object each, out of JSON-lines and CSV files, plain or compressed."""

from __future__ import annotations

import csv
import gzip
import os
import re
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeAlias

import msgspec
import orjson

from penstock.base.budgets import LINE_BYTES, check_budget
from penstock.errors import ConfigError, NotFoundError

Format: TypeAlias = Literal["jsonl", "csv"]
Record: TypeAlias = dict[str, Any]

_FORMATS: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv"}
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


class Line(NamedTuple):
    """A record: the number of its first line, its fields, and its JSON. That is the line itself, where it is JSON."""

    number: int
    record: Record
    json: bytes


class MalformedRecordError(ConfigError):
    """A line is not a record. The message names the file, the line and the problem."""

    exit_status = 1


def malformed(source: str, line: int, problem: str) -> MalformedRecordError:
    """The error for one line; a line number counts from 1."""
    return MalformedRecordError(f"{source}, line {line}: {problem}")


def read_records(source: str, form: Format | None = None, *, infer: bool = False) -> Iterator[tuple[int, Record]]:
    """Every record of a file, with the number of its first line. See `read_lines`."""
    for line in read_lines(source, form, infer=infer):
        yield line.number, line.record


def read_lines(source: str, form: Format | None = None, *, infer: bool = False) -> Iterator[Line]:
    """Every record of a file, or of standard input for `-`.

    A name that ends in `.gz` or `.zip` (one member) is decompressed as it is read. The name decides the form
    (`.jsonl`, `.ndjson`, `.json`, `.csv`) unless it is given; standard input is JSON lines unless it is given.
    Blank lines are skipped. CSV needs a header; its values are strings unless `infer`: then what is a JSON number
    becomes one, an empty field becomes null, and everything else (`007`, `NA`, `1e999`) stays a string. A number that
    would change stays a string as well: an integer beyond 64 bits, and one with more digits than a double keeps.

    Raises:
        NotFoundError: there is no such file.
        ConfigError: the form is not known, or the file cannot be opened.
        MalformedRecordError: a line is not a record.
    """
    with _open(source) as (lines, name):
        if (form or _form_of(source, name)) == "csv":
            yield from _csv(_decoded(lines, source), source, infer)
        else:
            yield from _json_lines(lines, source)


def _form_of(source: str, name: str) -> Format:
    if source == "-":
        return "jsonl"
    form = _FORMATS.get(Path(name.lower().removesuffix(".gz")).suffix)
    if form is None:
        raise ConfigError(
            f"{source}: its name does not show whether it is JSON lines or CSV (known: {', '.join(_FORMATS)}, each "
            "with .gz too, or alone in a .zip); say which format it has"
        )
    return form


def _standard_input() -> AbstractContextManager[IO[bytes]]:
    """Standard input under another object than the interpreter's, which cannot be closed at the end of the process
    while a thread waits for input in it."""
    try:
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    except (OSError, AttributeError):  # it is no file
        return nullcontext(sys.stdin.buffer)


@contextmanager
def _open(source: str) -> Iterator[tuple[Iterator[bytes], str]]:
    """The lines of a source, and the name that tells their format."""
    if source == "-":
        with _standard_input() as lines:
            yield _checked(lines, source), source
        return
    try:
        if source.lower().endswith(".zip"):
            with zipfile.ZipFile(source) as archive:
                member = _only_member(archive, source)
                with archive.open(member) as file:
                    yield _checked(file, source), member.filename
        else:
            with gzip.open(source) if source.lower().endswith(".gz") else open(source, "rb") as file:
                yield _checked(file, source), source
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {source} to publish") from None
    except (OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise ConfigError(f"{source} cannot be read: {error}") from error


def _only_member(archive: zipfile.ZipFile, source: str) -> zipfile.ZipInfo:
    members = [member for member in archive.infolist() if not member.is_dir()]
    if len(members) != 1:
        raise ConfigError(f"{source} has {len(members)} members; a zip to publish holds exactly one file")
    return members[0]


def _checked(file: IO[bytes] | gzip.GzipFile, source: str) -> Iterator[bytes]:
    """The lines of a file; a damaged compressed stream is an error naming the line it broke at."""
    number = 0
    while True:
        try:
            line = file.readline(LINE_BYTES + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
            raise malformed(source, number + 1, f"the compressed file is damaged or cut off ({error})") from error
        if not line:
            return
        number += 1
        check_budget(len(line), LINE_BYTES, f"line {number} of {source}")
        yield line


def _json_lines(lines: Iterator[bytes], source: str) -> Iterator[Line]:
    for number, line in enumerate(lines, 1):
        text = (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).strip(b" \t\r\n")
        if not text.strip():
            continue
        try:
            record = msgspec.json.decode(text)
        except (ValueError, RecursionError) as error:
            raise malformed(source, number, f"this is not JSON ({error}): {_excerpt(text)}") from error
        if not isinstance(record, dict):
            raise malformed(source, number, f"expected a JSON object, found {_excerpt(text)}")
        yield Line(number, record, text)


def _decoded(lines: Iterator[bytes], source: str) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise malformed(source, number, f"this is not UTF-8 ({error})") from error


def _csv(lines: Iterator[str], source: str, infer: bool) -> Iterator[Line]:
    rows = csv.reader(lines, strict=True)
    header: list[str] | None = None
    while True:
        number = rows.line_num + 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise malformed(source, number, f"this is not CSV ({error})") from error
        if row is None:
            return
        if not row:
            continue
        if header is None:
            header = _header(row, source, number)
            continue
        if len(row) != len(header):
            raise malformed(source, number, f"expected {len(header)} fields as in the header, found {len(row)}")
        values: list[Any] = [_inferred(value) for value in row] if infer else list(row)
        record = dict(zip(header, values, strict=True))
        yield Line(number, record, orjson.dumps(record))


def _header(row: list[str], source: str, number: int) -> list[str]:
    twice = sorted(name for name, count in Counter(row).items() if count > 1)
    if twice:
        raise malformed(source, number, f"the header names {', '.join(map(repr, twice))} more than once")
    return row


def _inferred(text: str) -> str | int | float | None:
    if not text:
        return None
    if _INTEGER.fullmatch(text):
        number = int(text)
        return number if -(1 << 63) <= number < 1 << 63 else text
    if _NUMBER.fullmatch(text) and not text.lstrip("-").isdigit():
        value = float(text)
        return value if abs(value) != float("inf") and Decimal(repr(value)) == Decimal(text) else text
    return text


def _excerpt(text: bytes) -> str:
    line = text.decode(errors="replace").strip()
    return repr(line if len(line) <= 80 else f"{line[:80]}…")
