"""The error of a start for which Spark has no executor, or none that answers."""

from __future__ import annotations

from penstock.spark.containers.launch import no_executor_text


def test_without_an_executor_the_application_and_the_cluster_are_named() -> None:
    said = no_executor_text(500, "application_17_0042", "yarn", "http://gateway:4040")
    assert "job.container.start.timeout.ms=500" in said
    assert "application_17_0042" in said
    assert "yarn" in said
    assert "http://gateway:4040" in said


def test_executors_without_containers_are_not_said_to_be_missing() -> None:
    said = no_executor_text(500, "application_17_0042", "yarn", None, ["executor 1 on a: no Python"])
    assert "no executor came up" not in said
    assert "application_17_0042" in said
    assert said.endswith("executor 1 on a: no Python")
