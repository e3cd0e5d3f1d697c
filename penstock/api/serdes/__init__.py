"""Serdes: how keys and values become bytes and back.

A serde never gets None: a message without a key or a value keeps None, and so does an absent key of a store. The job
pickles its serdes, so your own serdes must be picklable.
"""

from penstock.api.serdes.base import Bytes, Serde, String, not_bytes
from penstock.api.serdes.columns import Columns, ColumnSerde, PackedColumns
from penstock.api.serdes.values import Double, Integer, Json, JsonKey, Long, SamzaDouble, SamzaInteger, SamzaLong, Tuple

__all__ = [
    "Bytes",
    "ColumnSerde",
    "Columns",
    "Double",
    "Integer",
    "Json",
    "JsonKey",
    "Long",
    "PackedColumns",
    "SamzaDouble",
    "SamzaInteger",
    "SamzaLong",
    "Serde",
    "String",
    "Tuple",
    "not_bytes",
]
