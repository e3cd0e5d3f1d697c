"""The fingerprint that a version of a table must have to serve a job."""

from __future__ import annotations

from penstock.api.state.side_inputs import PushedTable
from penstock.errors import ConfigError
from penstock.graph.stores import StoreSpec
from penstock.tables.versions.manifest import TableFingerprint


def pushed_table(spec: StoreSpec) -> PushedTable:
    """The declaration of a pushed table. Raises ConfigError if the store is none."""
    if not isinstance(spec.side, PushedTable):
        raise ConfigError(f"store `{spec.name}` is no pushed table")
    return spec.side


def fingerprint_of(spec: StoreSpec, tasks: int) -> TableFingerprint:
    side = pushed_table(spec)
    return TableFingerprint(
        spec.key_serde.name,
        spec.value_serde.name,
        columns(side.key),
        None if side.value is None else columns(side.value),
        isinstance(side.value, str),
        1 if side.broadcast else tasks,
        side.broadcast,
        _reader(side),
    )


def _reader(side: PushedTable) -> str:
    options = [f"{name}={value}" for name, value in sorted(side.options.items())]
    return " ".join([side.format, *([side.schema] if side.schema is not None else []), *options])


def columns(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
