"""Samza's Checkpoint V1 value, one per task (Samza's `CheckpointV1Serde`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from penstock.api.ssp import SystemStreamPartition
from penstock.documents import decoding, fields, number, text
from penstock.errors import CorruptError

VERSION = 1

_MIN_FIELDS = 4


@dataclass(frozen=True, slots=True)
class CheckpointV1:
    """Last processed offsets of inputs and, mixed among them, positions of changelogs (`<id>:<offset>`).

    An offset may be None, for example that of an empty changelog.
    """

    offsets: Mapping[SystemStreamPartition, str | None]

    @property
    def version(self) -> int:
        """1."""
        return VERSION

    def encode(self) -> str:
        """The JSON Samza writes; inner fields in Samza's order, the outer map in ascending order."""
        document = {
            f"SystemStreamPartition [{ssp.system}, {ssp.stream}, {ssp.partition}]": {
                "system": ssp.system,
                "partition": str(ssp.partition),
                "offset": offset,
                "stream": ssp.stream,
            }
            for ssp, offset in sorted(self.offsets.items(), key=lambda item: item[0])
        }
        return orjson.dumps(document).decode()

    @classmethod
    def decode(cls, text: str | bytes) -> CheckpointV1:
        """Read what Samza or Penstock wrote. The outer keys say nothing; every inner object has at least four fields.

        Raises:
            CorruptError: this is not a V1 value. (Samza logs and goes on without a checkpoint.)
        """
        with decoding(f"not a V1 checkpoint value, {text[:200]!r}"):
            return cls(dict(_entry(fields(entry)) for entry in fields(orjson.loads(text)).values()))


def _entry(own: Mapping[str, object]) -> tuple[SystemStreamPartition, str | None]:
    system, stream, partition = text(own["system"]), text(own["stream"]), number(own["partition"])
    offset = own.get("offset")
    if len(own) < _MIN_FIELDS:
        raise CorruptError(f"a V1 checkpoint has fewer than {_MIN_FIELDS} fields in {dict(own)!r}")
    if not isinstance(offset, str | None):
        raise CorruptError(f"a V1 checkpoint's offset is {offset!r}, expected a string or null")
    return SystemStreamPartition(system, stream, partition), offset
