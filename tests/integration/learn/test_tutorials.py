"""The tutorials of the documentation run as written, command by command."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing.kafka_broker import KafkaBroker
from tests.support.tools.places import ROOT
from tests.support.tools.tutorials import run_page

LEARN = ROOT / "docs" / "learn"


@pytest.mark.spark
def test_the_first_job_up_to_its_first_run(tmp_path: Path) -> None:
    run_page(LEARN / "first_job.md", tmp_path, before="## A crash")


@pytest.mark.spark
@pytest.mark.slow
def test_the_first_job(tmp_path: Path) -> None:
    run_page(LEARN / "first_job.md", tmp_path)


@pytest.mark.spark
@pytest.mark.slow
def test_from_pyspark(tmp_path: Path) -> None:
    run_page(LEARN / "from_pyspark.md", tmp_path)


@pytest.mark.spark
@pytest.mark.slow
def test_from_samza(tmp_path: Path) -> None:
    run_page(LEARN / "from_samza.md", tmp_path)


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.slow
def test_from_kafka(tmp_path: Path) -> None:
    with KafkaBroker() as broker:
        run_page(LEARN / "from_kafka.md", tmp_path, replace={"localhost:9092": broker.bootstrap_servers})
