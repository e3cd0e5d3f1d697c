"""Files of rows, and the manifests and listings beside them."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet

from penstock.admin.stream.records import read_lines
from penstock.system.files.folders import Folder
from penstock.system.files.formats import Format, SourceFile, read_rows
from penstock.system.files.listing import Listing
from penstock.system.files.manifests import PartitionLog, noted_partitions, number_of
from tests.support.parsers.parser import SSP, Parser, of_file, of_object


def rows_of_file(kind: Format, ending: str) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        with TemporaryDirectory() as folder:
            (Path(folder) / f"f.{ending}").write_bytes(data)
            place = Folder(folder)
            for found in place.files():  # none if it is empty
                with place.reading(found) as (system, path):
                    list(read_rows(SourceFile(system, path, path, found.path, {"p": "1"}), kind))

    return read


def published(ending: str) -> Callable[[bytes], object]:
    return of_file(f"f.{ending}", lambda file: list(read_lines(str(file), infer=True)))


def parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


PLAIN = pa.table({"n": list(range(50)), "s": ["a", "b"] * 25})
NESTED = pa.table({"l": [[1], None], "s": [{"a": [{"b": "x"}]}, None], "d": [Decimal("1.5"), None]})


def packed(data: bytes) -> bytes:
    return bytes(pa.Codec("gzip").compress(data, asbytes=True))


LINES = b'{"a": 1, "b": "x"}\n\n{"a": 2}\n'
CSV = b'a,b\n1,"x, y"\n,"z""\n2"\n'
STREAM = b'{"format":1,"identity":"00ff","folder":"/f","partitions":4}'
LISTED = b'{"files":[["a.parquet",10,5,0],["b.parquet",20,6,3]]}'
FOLDER = "00000000000000000000"
_OnFiles = partial(Parser, touches_files=True)
FILES = {
    "rows of jsonl": _OnFiles(rows_of_file("json", "jsonl"), [LINES]),
    "rows of jsonl.gz": _OnFiles(rows_of_file("json", "jsonl.gz"), [packed(LINES)]),
    "rows of csv": _OnFiles(rows_of_file("csv", "csv"), [CSV]),
    "rows of parquet": _OnFiles(
        rows_of_file("parquet", "parquet"), [*map(parquet, (PLAIN, NESTED, PLAIN.select([]), PLAIN.slice(0, 0)))]
    ),
    "published jsonl": _OnFiles(published("jsonl"), [LINES]),
    "published csv": _OnFiles(published("csv"), [CSV]),
    "published csv.gz": _OnFiles(published("csv.gz"), [packed(CSV)]),
    "listing": _OnFiles(of_object(f"p/log/{FOLDER}", lambda o: Listing(o, "p", "/f").read()), [STREAM]),
    "listed files": _OnFiles(
        of_object("p/log/00000000000000000001", lambda o: Listing(o, "p", "/f").read(), {f"p/log/{FOLDER}": STREAM}),
        [LISTED],
    ),
    "manifest of files": _OnFiles(
        of_object(f"_penstock/00000/{FOLDER}", lambda o: PartitionLog(o, SSP).read()),
        [
            b'{"format":1,"token":"t","epochs":{"w":3},"marks":{"w":[1,2]},"files":1,"file":{"name":"f","size_bytes":1,"rows":1}}'
        ],
    ),
    "number of partitions": _OnFiles(of_object("_penstock/partitions", noted_partitions), [b"12"]),
    "name of a file": Parser(
        lambda d: number_of(d.decode(errors="replace")), [b"part-00000-00000000000000000001-ab.parquet"]
    ),
}
