"""join_table: joins each message with the table's value of its key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.graph.specs import OperatorSpec, TableJoinSpec
from penstock.runtime.context import failure_in
from penstock.runtime.messages.columns import MessageColumns, Target, one_by_one
from penstock.runtime.operators.base import CallWatch, Node, Operator, StageContext


class JoinTable(Operator[TableJoinSpec]):
    """Joins with the table's value at the moment when the message comes."""

    def build(self, stage: StageContext, downstream: Target) -> Node:
        op_id, position, function = self.spec.id, stage.position, self.spec.function
        get, keeps_all = stage.stores[self.spec.table].get, self.spec.kind == "left"

        def accept(columns: MessageColumns) -> None:
            results, kept = [], []
            try:
                for row, key, value in zip(columns.rows, columns.keys, columns.values, strict=True):
                    position.row = row
                    found = None if key is None else get(key)
                    if joined := keeps_all or found is not None:
                        results.append(function(value, found))
                    kept.append(joined)
            except BaseException as error:
                raise failure_in(op_id, error) from error
            if results:
                left = columns if len(results) == len(kept) else columns.where(kept)
                downstream.accept(left.with_values(results))

        def push(key: Any, value: Any) -> None:
            try:
                found = None if key is None else get(key)
                if not keeps_all and found is None:
                    return
                result = function(value, found)
            except BaseException as error:
                raise failure_in(op_id, error) from error
            downstream.push(key, result)

        return Node(one_by_one(push, position) if stage.followed else accept, position, push)

    def watched(self, watch: CallWatch) -> OperatorSpec:
        op_id, function = self.spec.id, self.spec.function

        def watched(value: Any, found: Any) -> Any:
            with watch.call(op_id, value):
                return function(value, found)

        return replace(self.spec, function=watched)
