"""Examples of pages run as written, with Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.testing.kafka_broker import KafkaBroker
from tests.support.tools.pages import run_example
from tests.support.tools.places import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def example(page: str) -> str:
    """The part before the first section."""
    return (ROOT / "docs" / page).read_text("utf-8").split("\n## ")[0]


def results(lines: str) -> list[tuple[str, str]]:
    """Key and value of each message; times, and the order of keys in a partition, differ from run to run."""
    messages = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    return sorted((str(message["key"]), message["value"].replace(" ", "")) for message in messages)


@pytest.mark.kafka
def test_the_example_of_kafka(tmp_path: Path) -> None:
    with KafkaBroker() as broker:
        text = example("kafka.md").replace("localhost:9092", broker.bootstrap_servers)
        printed, shown = run_example(text, tmp_path)
    assert results(printed) == results(shown) != []


def test_the_example_of_standbys(tmp_path: Path) -> None:
    printed, shown = run_example(example("standbys.md"), tmp_path)
    assert results(printed) == results(shown) != []


def test_the_example_of_lakes(tmp_path: Path) -> None:
    printed, shown = run_example(example("lakes.md").replace("/srv", str(tmp_path)), tmp_path)
    assert results(printed) == results(shown) != []
