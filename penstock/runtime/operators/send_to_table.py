"""send_to: writes each message to a table."""

from __future__ import annotations

from typing import Any

from penstock.api.graph import SendToTableSpec
from penstock.errors import SerdeError
from penstock.runtime.columns import Columns, Target
from penstock.runtime.context import failure_in
from penstock.runtime.operators.base import Node, Operator, Surroundings


class SendToTable(Operator[SendToTableSpec]):
    """Puts the value of each message under its key; None deletes the key."""

    needs_task = True

    def build(self, surroundings: Surroundings, downstream: Target) -> Node:
        op_id, position, put = self.spec.id, surroundings.position, surroundings.stores[self.spec.table].put

        def accept(columns: Columns) -> None:
            try:
                for row, key, value in zip(columns.rows, columns.keys, columns.values, strict=True):
                    position.row = row
                    if key is None:
                        raise keyless(self.spec)
                    put(key, value)
            except BaseException as error:
                raise failure_in(op_id, error) from error

        def push(key: Any, value: Any) -> None:
            try:
                if key is None:
                    raise keyless(self.spec)
                put(key, value)
            except BaseException as error:
                raise failure_in(op_id, error) from error

        return Node(accept, push)


def keyless(spec: SendToTableSpec) -> SerdeError:
    """The error for a message that has no place in a table."""
    return SerdeError(
        f"operator `{spec.id}`: a message without a key cannot be sent to table `{spec.table}`. Give it one with "
        ".partition_by(...), or leave it out with .filter(lambda message: message.key is not None, envelope=True)"
    )
