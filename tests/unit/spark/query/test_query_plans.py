"""The configuration of a job inside a query."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.errors import ConfigError
from penstock.spark.applications import ApplicationStream
from penstock.spark.query.plan import QueryPlan
from penstock.spark.transform import TransformedStream


def plan(**changes: Any) -> QueryPlan:
    app = ps.StreamApplication("visits")
    app.input("spark.rows").send_to(app.output("spark.totals"))
    return QueryPlan(app.graph(), (), (), "/root", **changes)


def test_only_a_matching_checkpoint_can_be_chosen() -> None:
    assert plan(from_checkpoint="matching").settings().job.root == "file:///root"
    with pytest.raises(ConfigError, match="from_checkpoint='latest': it is \"matching\", or not given"):
        plan(from_checkpoint="latest").settings()


def test_keys_of_the_query_are_not_to_be_configured() -> None:
    with pytest.raises(ConfigError, match=r"`task\.commit\.ms` cannot be configured"):
        plan(config={"task.commit.ms": 5}).settings()


@pytest.mark.parametrize("stream", [ApplicationStream, TransformedStream])
def test_a_handler_that_would_not_run_is_refused(stream: Any) -> None:
    async def handle(out: Any, batch: int) -> None: ...

    with pytest.raises(ConfigError, match="for_each_batch: the handler is `async def`"):
        stream(None, plan(), *[None] * (stream is ApplicationStream)).for_each_batch(handle)
