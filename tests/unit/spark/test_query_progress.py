"""Spark's progress of a query with Penstock's operators in it can be read, printed and written like Spark's own."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

from penstock.driver.show.work import StateOperatorProgress as Found
from penstock.spark.queries import note_state, state_operators, with_state

OWN = Found("count", None, 3, 1, 4096, 0, 2, 2, custom_metrics={"misses": 7})
SPARKS = {
    "operatorName": "dedupe",
    "numRowsTotal": 5,
    "numRowsUpdated": 1,
    "numRowsRemoved": 0,
    "allUpdatesTimeMs": 1,
    "allRemovalsTimeMs": 1,
    "commitTimeMs": 1,
    "memoryUsedBytes": 1,
    "numRowsDroppedByWatermark": 0,
    "numShufflePartitions": 2,
    "numStateStoreInstances": 2,
    "customMetrics": {},
}


def progress(batch: int, *operators: dict[str, Any]) -> StreamingQueryProgress:
    return StreamingQueryProgress.fromJson(
        {
            "id": str(uuid4()),
            "runId": str(uuid4()),
            "name": None,
            "timestamp": "2026-01-01T00:00:00.000Z",
            "batchId": batch,
            "batchDuration": 5,
            "stateOperators": list(operators),
            "sources": [],
            "sink": {"description": "memory", "numOutputRows": 1},
        }
    )


@pytest.mark.parametrize("sparks", [(), (SPARKS,)], ids=["none of Spark's", "one of Spark's"])
def test_texts_have_the_operators_of_both(sparks: tuple[dict[str, Any], ...]) -> None:
    made = progress(3, *sparks)
    note_state(str(made.id), 3, [OWN])
    found = with_state(made)
    names = [*(each["operatorName"] for each in sparks), "count"]
    assert [each.operatorName for each in found.stateOperators] == names
    for text in (str(found), repr(found), found.json, found.prettyJson):
        assert [each["operatorName"] for each in json.loads(text)["stateOperators"]] == names
    printed = json.loads(str(found["stateOperators"]))
    assert printed[-1]["numRowsUpdated"] == 3
    assert printed[-1]["numRowsTotal"] is None
    assert printed[-1]["customMetrics"] == {"misses": 7}


def test_an_operator_alone_has_a_text() -> None:
    made = progress(4)
    note_state(str(made.id), 4, [OWN])
    (own,) = state_operators(made)
    for text in (str(own), repr(own), own.json, own.prettyJson, json.dumps(own)):
        assert json.loads(text)["memoryUsedBytes"] == 4096
    assert copy.deepcopy(own) == pickle.loads(pickle.dumps(own)) == own


def test_a_batch_of_which_nothing_is_known_stays_as_it_is() -> None:
    made = progress(9, SPARKS)
    text = str(made)
    assert str(with_state(made)) == text
