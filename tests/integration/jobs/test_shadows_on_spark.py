"""Shadows on Spark: a fork continues from the state of its parent, and nobody sees what it sends."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import penstock as ps
from penstock import admin
from penstock.config import load_config
from penstock.system.base import OffsetRange
from penstock.system.registry import open_system
from penstock.testing.rehearsal.replay import replay_key
from penstock.testing.rehearsal.shadow import shadow
from tests.support.jobs.spark_home import SparkHome

pytestmark = [pytest.mark.spark, pytest.mark.slow]
WORDS = [f"w{number % 7}" for number in range(60)]


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Asks(ps.StreamTask):
    """Counts the messages of a key, and says whether it is in a shadow."""

    def init(self, context: ps.TaskContext) -> None:
        self.counts, self.is_shadow = context.store("counts"), context.is_shadow

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        if envelope.value == "bad":
            raise ValueError("bad")
        self.counts[envelope.key] = count = self.counts.get(envelope.key, 0) + 1
        collector.emit(key=envelope.key, value=[count, self.is_shadow])


def words() -> ps.StreamApplication:
    app = ps.StreamApplication("words")
    app.store("counts")
    counted = app.input("local.in").partition_by(str, id="by-word").process(Asks, stores=["counts"], id="count")
    counted.send_to(app.output("local.out"), id="out")
    return app


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("latency", [None, 50])
def test_a_shadow_reads_what_its_parent_does_and_sends_nothing(
    guarantee: str, latency: int | None, spark: SparkSession, tmp_path: Path
) -> None:
    config = {
        "task.commit.ms": 500,
        "streams.local.out.output.guarantee": guarantee,
        "task.dead.letter.stream": "local.dead",
        **({} if latency is None else {"job.latency.target.ms": latency}),
    }
    home = SparkHome(tmp_path, spark, {"in": 2, "out": 3, "dead": 2}, config)
    home.spread("in", WORDS)
    home.run(words())
    with admin.open_job("words", overrides=home.config) as job:
        admin.fork(job, "what-if")
    home.spread("in", [*WORDS, "bad"])
    before = sorted(home.read("out")), sorted(home.read("dead"))
    held = {"job.name": "what-if", "job.shadow.enabled": True, "job.shadow.path": str(tmp_path / "shadow")}
    parent, home.config = home.config, home.config | held
    home.run(words())
    assert (sorted(home.read("out")), sorted(home.read("dead"))) == before
    found = open_system(load_config(overrides=home.config).system("local"))
    assert sent(found, "out") == sorted(
        [word, [WORDS.count(word) + number + 1, True]] for word in set(WORDS) for number in range(WORDS.count(word))
    )
    assert len(sent(found, "dead")) == 1
    home.config = parent
    home.run(words())
    counts = sorted([key, count] for key, (count, is_shadow), _ in home.read("out") if not is_shadow)
    assert counts == sorted([word, n + 1] for word in set(WORDS) for n in range(2 * WORDS.count(word)))
    with admin.open_job("words", overrides=home.config) as job:  # what Spark did, again without it
        steps: list[Any] = []
        done = replay_key(job, words(), "w3", lambda step: steps.append(step.as_json()))
        assert (done.messages, done.differing) == (2 * WORDS.count("w3"), ())
        assert [step["changes"][0]["after"] for step in steps] == list(range(1, 2 * WORDS.count("w3") + 1))
        assert not shadow(job, words(), words(), from_checkpoint="latest-1").differs


def sent(system: Any, stream: str) -> list[Any]:
    """Key and value of each message that a shadow has held back."""
    with closing(system.written.admin()) as looks, closing(system.written.reader()) as reader:
        return sorted(
            [(key or b"").decode(), json.loads(value or b"null")]
            for number, ends in looks.offsets(stream).items()
            for chunk in reader.read(
                OffsetRange(ps.SystemStreamPartition("local", stream, number), 0, ends.upcoming), 1000
            )
            for _, _, key, value, *_ in chunk
        )
