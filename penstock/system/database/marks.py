"""The table `penstock_progress`: who may write to an output, and how far it is published. It is in the same database as
the tables, so that one transaction changes both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.schema import CreateTable

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import FencedError, NotFoundError, PenstockError, SystemRefusedError
from penstock.system.base import Progress, WriterIdentity
from penstock.system.contract.writer import WriterMark
from penstock.system.database.connection import Database
from penstock.system.database.errors import BusyError, is_of_a_row

TABLE = "penstock_progress"
_NAME = sa.String(255).with_variant(sa.String(255, collation="utf8mb4_bin"), "mysql", "mariadb")
_MARKS = sa.Table(
    TABLE,
    sa.MetaData(),
    sa.Column("writer", _NAME, primary_key=True),
    sa.Column("stream", _NAME, primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("slot", sa.BigInteger),
    sa.Column("chunk", sa.BigInteger),
    implicit_returning=False,
)


def is_there(database: Database) -> bool:
    """True if the table of the marks exists."""
    with database.look(f"the table `{TABLE}` cannot be looked for") as connection:
        return sa.inspect(connection).has_table(TABLE)


def ensure(database: Database) -> None:
    """Create the table of the marks, unless it exists."""
    if is_there(database):
        return
    try:
        with database.look(f"the table `{TABLE}` cannot be created") as connection:
            connection.execute(CreateTable(_MARKS))
    except PenstockError as error:
        if is_there(database):
            return  # another process was faster
        if isinstance(error, SystemRefusedError) and is_of_a_row(error):
            raise SystemRefusedError(
                f"{error}. Let the user create it, or create it as in docs/databases.md"
            ) from error
        raise


def take_over(
    connection: sa.Connection, identity: WriterIdentity, ssps: Iterable[SystemStreamPartition]
) -> dict[SystemStreamPartition, WriterMark]:
    """Lock the marks of a writer's name in these partitions until the transaction ends, and set its epoch. Returns them
    as they are now.

    Raises:
        FencedError: a larger epoch has written to one of the partitions.
        BusyError: another process has added the marks meanwhile.
    """
    wanted = sorted(ssps)
    found = _read(connection, identity.name, wanted, lock=True)
    for ssp, mark in found.items():
        if mark.epoch > identity.epoch:
            raise FencedError(
                f"the writer `{identity.name}` of epoch {identity.epoch} must not append to `{ssp.system_stream}` "
                f"partition {ssp.partition}: epoch {mark.epoch} has taken over. Stop this run"
            )
    own = {"writer": identity.name, "epoch": identity.epoch}
    if missing := [_place(ssp) | own for ssp in wanted if ssp not in found]:
        try:
            connection.execute(_MARKS.insert(), missing)
        except IntegrityError as error:
            raise BusyError(f"another process has begun to write as `{identity.name}`") from error
    older = [ssp for ssp in wanted if ssp in found and found[ssp].epoch < identity.epoch]
    _update(connection, identity.name, {ssp: {"epoch": identity.epoch} for ssp in older})
    return {
        ssp: found[ssp]._replace(epoch=identity.epoch) if ssp in found else WriterMark(identity.epoch, None)
        for ssp in wanted
    }


def keep(connection: sa.Connection, name: str, progress: Mapping[SystemStreamPartition, Progress]) -> None:
    """Set the progress in partitions that were taken over."""
    _update(connection, name, {ssp: {"slot": own.slot, "chunk": own.chunk} for ssp, own in progress.items()})


def read(
    database: Database, name: str, ssps: Sequence[SystemStreamPartition]
) -> dict[SystemStreamPartition, WriterMark]:
    """The marks of a writer's name, without a lock."""
    try:
        with database.look(f"the table `{TABLE}` cannot be read") as connection:
            return _read(connection, name, ssps, lock=False)
    except NotFoundError:
        return {}


def _read(
    connection: sa.Connection, name: str, ssps: Sequence[SystemStreamPartition], *, lock: bool
) -> dict[SystemStreamPartition, WriterMark]:
    by_stream: dict[str, dict[int, SystemStreamPartition]] = {}
    for ssp in ssps:
        by_stream.setdefault(str(ssp.system_stream), {})[ssp.partition] = ssp
    found = {}
    for stream, parts in sorted(by_stream.items()):
        asked = (
            sa.select(_MARKS.c.part, _MARKS.c.epoch, _MARKS.c.slot, _MARKS.c.chunk)
            .where(_MARKS.c.writer == name, _MARKS.c.stream == stream, _MARKS.c.part.in_(list(parts)))
            .order_by(_MARKS.c.part)  # everybody locks them in this order
        )
        for part, epoch, slot, chunk in connection.execute(asked.with_for_update() if lock else asked):
            found[parts[part]] = WriterMark(epoch, None if slot is None else Progress(slot, chunk))
    return found


def _update(connection: sa.Connection, name: str, values: Mapping[SystemStreamPartition, Mapping[str, int]]) -> None:
    for ssp, own in sorted(values.items()):
        place = _place(ssp)
        at = (_MARKS.c.writer == name, _MARKS.c.stream == place["stream"], _MARKS.c.part == place["part"])
        connection.execute(_MARKS.update().where(*at).values(**own))


def _place(ssp: SystemStreamPartition) -> dict[str, int | str]:
    return {"stream": str(ssp.system_stream), "part": ssp.partition}
