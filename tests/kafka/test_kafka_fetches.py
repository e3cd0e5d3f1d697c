"""Both ways to fetch the Kafka server get the same jars, from the network."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.testing import kafka_jars as jars
from penstock.testing.kafka_jars import kafka_jars

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.mark.parametrize("way", ["_with_maven", "_with_ivy"])
def test_each_way_gets_the_jars_that_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    if way == "_with_maven" and shutil.which("mvn") is None:
        pytest.skip("there is no `mvn`")
    used = kafka_jars()
    fetched = tmp_path / "jars"
    fetched.mkdir()
    getattr(jars, way)(fetched, tmp_path, jars.FETCH_S)
    assert {jar.name: jar.read_bytes() for jar in fetched.iterdir()} == {
        jar.name: jar.read_bytes() for jar in used.glob("*.jar")
    }
