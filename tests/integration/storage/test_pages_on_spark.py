"""Examples of pages run as written, with Spark."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from penstock.testing.kafka_broker import KafkaBroker
from tests.support.tools.pages import blocks, run_commands, run_example
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


JOBS = sorted(path.stem for path in (ROOT / "docs" / "examples").glob("*.md"))


def shown_lines(text: str) -> list[str]:
    """Messages as `penstock stream tail` prints them, in a terminal or not. Without event time, their timestamps are
    those of the run."""
    lines = [line.replace("\t", "  ") for line in text.splitlines() if re.match(r"\d+:\d+\s", line)]
    return sorted(re.sub(r"20(?:2[6-9]|[3-9]\d)-\S+Z", "<time>", line) for line in lines)


@pytest.mark.parametrize("name", JOBS)
def test_an_example_to_copy(name: str, tmp_path: Path) -> None:
    """The commands that a reader is told to try print what the page shows."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands, shown, *_ = blocks((ROOT / "docs" / "examples" / f"{name}.md").read_text("utf-8"), "")
    assert shown_lines(run_commands(commands, tmp_path)) == shown_lines(shown) != []


def test_the_commands_of_the_readme(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (commands,) = (each for each in blocks((ROOT / "README.md").read_text("utf-8"), "") if "stream tail" in each)
    printed = run_commands(commands, tmp_path)
    assert '{"flights":1,"miles":1400}' in printed.replace(" ", "")
    assert "utilisation" in printed
