"""Settings of a session: the `spark.*` keys, under which executors with containers stay, and their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.sources import parse_properties
from penstock.errors import ConfigError
from penstock.spark.session.executors import (
    ENABLED,
    MINIMUM,
    Executor,
    fault_in_allocation,
    host_of,
    is_dynamic,
    kept_executors,
)
from penstock.spark.session.gateway import submit_command, write_conf
from penstock.spark.session.session import conf_of_launch, session_conf


def launched(folder: Path, arguments: str = "", defaults: str = "", **environ: str) -> dict[str, str]:
    """The configuration that a JVM would read with these arguments and this spark-defaults.conf."""
    (folder / "conf").mkdir(exist_ok=True)
    (folder / "conf" / "spark-defaults.conf").write_text(defaults, encoding="utf-8")
    return conf_of_launch({"PYSPARK_SUBMIT_ARGS": f"{arguments} pyspark-shell", **environ}, folder)


def test_keys_of_the_job_come_first_then_those_given_to_spark_then_built_in_ones() -> None:
    given = {"spark.master": "local[3]", "spark.ui.enabled": "true"}
    outside = {"spark.master": "yarn", "spark.ui.enabled": "false", "spark.locality.wait": "3s"}
    conf = session_conf("job", given, outside, {"spark.built.in": "1"})
    assert conf["spark.master"] == "local[3]"
    assert conf["spark.ui.enabled"] == "true"
    assert conf["spark.locality.wait"] == "3s"
    assert conf["spark.built.in"] == "1"
    assert conf["spark.driver.host"] == "127.0.0.1"
    assert session_conf("job", {}, {"spark.built.in": "2"}, {"spark.built.in": "1"})["spark.built.in"] == "2"


def test_defaults_of_local_mode_are_for_local_masters_whoever_names_them() -> None:
    assert session_conf("job", {}, {}, {})["spark.master"] == "local[*]"
    assert "spark.driver.host" not in session_conf("job", {}, {"spark.master": "spark://a:7077"}, {})
    assert "spark.driver.host" in session_conf("job", {"spark.master": "local[1]"}, {"spark.master": "yarn"}, {})


def test_the_command_line_counts_more_than_files(tmp_path: Path) -> None:
    defaults = "spark.master   spark://file:7077\n# a comment\nspark.a=1\nother.b 2\n"
    assert launched(tmp_path, defaults=defaults) == {"spark.master": "spark://file:7077", "spark.a": "1"}
    arguments = "--master yarn --conf spark.a=2 --conf=spark.c=x=y --driver-java-options '-Xss4m -Da=b' --name n"
    assert launched(tmp_path, arguments, defaults) == {
        "spark.master": "yarn",
        "spark.a": "2",
        "spark.c": "x=y",
        "spark.driver.extraJavaOptions": "-Xss4m -Da=b",
        "spark.app.name": "n",
    }
    assert launched(tmp_path, defaults="spark.a 1", MASTER="yarn") == {"spark.master": "yarn", "spark.a": "1"}
    assert launched(tmp_path, defaults=defaults, MASTER="yarn")["spark.master"] == "spark://file:7077"


def test_a_properties_file_replaces_the_defaults_unless_both_are_asked_for(tmp_path: Path) -> None:
    own = tmp_path / "own.conf"
    own.write_text("spark.a 2", encoding="utf-8")
    assert launched(tmp_path, f"--properties-file {own}", "spark.a 1\nspark.b 1") == {"spark.a": "2"}
    both = launched(tmp_path, f"--properties-file {own} --load-spark-defaults", "spark.a 1\nspark.b 1")
    assert both == {"spark.a": "2", "spark.b": "1"}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"spark-defaults\.conf"):
        launched(tmp_path, defaults="spark.a \\u12")


def test_a_page_of_memory_is_much_smaller_than_what_a_shuffle_keeps_in_memory() -> None:
    """Spark counts whole pages. If the first one is above the limit, each row of a shuffle becomes a file."""
    conf = session_conf("job", {}, {}, {})
    page, kept = (
        int(conf[key].removesuffix("m"))
        for key in ("spark.buffer.pageSize", "spark.shuffle.spill.maxSizeInBytesForSpillThreshold")
    )
    assert page * 8 <= kept


def test_the_keys_of_a_jvm_are_in_a_file_that_nobody_else_can_read(tmp_path: Path) -> None:
    given = {"spark.a": "1", "spark.b": " a\\b c=d:e #!\té\r\nx", "a b:c=d": "", "#c": "!"}
    file = write_conf(tmp_path / "conf", given)
    assert file.stat().st_mode & 0o777 == 0o600
    assert {each.key: each.value for each in parse_properties(file.read_bytes().decode())} == given
    own = ["--properties-file", "mine", "--conf", "a=b", "pyspark-shell"]
    assert submit_command("spark-submit", file, own) == [
        *("spark-submit", "--properties-file", "mine", "--conf", "a=b"),
        *("--properties-file", str(file), "pyspark-shell"),
    ], "of two files, spark-submit reads the last one"


CACHED_IDLE = "spark.dynamicAllocation.cachedExecutorIdleTimeout"
FETCHED = "spark.shuffle.service.fetch.rdd.enabled"
DYNAMIC = {"spark.master": "yarn", ENABLED: "true"}
KEPT = {**DYNAMIC, MINIMUM: "3"}


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"spark.master": "yarn"}, False),
        ({"spark.master": "yarn", ENABLED: "True"}, True),
        ({"spark.master": "local-cluster[2,1,1024]", ENABLED: "true"}, True),
        ({"spark.master": "local[4]", ENABLED: "true"}, False),
        ({"spark.master": "local", ENABLED: "true"}, False),
    ],
)
def test_a_local_spark_adds_and_removes_no_executors(conf: dict[str, str], expected: bool) -> None:
    assert is_dynamic(conf) is expected


@pytest.mark.parametrize(
    ("conf", "what", "remedy"),
    [
        (DYNAMIC, f"`{MINIMUM}` is not set", f"Set `{MINIMUM}` to that number"),
        ({**DYNAMIC, MINIMUM: "0"}, f"`{MINIMUM}` is 0", f"or `{ENABLED}` to false"),
        ({**KEPT, CACHED_IDLE: "30min"}, f"`{CACHED_IDLE}` is 30min", "Leave the key out, or set it to 2147483647s"),
        ({**KEPT, FETCHED: "true"}, f"`{FETCHED}` are true", f"Set `{FETCHED}` to false"),
    ],
)
def test_settings_by_which_containers_would_be_lost_are_named(conf: dict[str, str], what: str, remedy: str) -> None:
    fault = fault_in_allocation(conf)
    assert fault is not None
    assert what in fault
    assert remedy in fault
    assert fault_in_allocation({**conf, ENABLED: "false"}) is None


@pytest.mark.parametrize("more", [{}, {CACHED_IDLE: "2147483647s"}, {CACHED_IDLE: "2147483647"}, {FETCHED: "false"}])
def test_settings_by_which_they_stay(more: dict[str, str]) -> None:
    assert fault_in_allocation({**KEPT, **more}) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"spark.executor.instances": "4"}, 4),
        ({"spark.executor.instances": "4", MINIMUM: "2"}, 2),
        ({}, 0),
        ({ENABLED: "false", "spark.executor.instances": "4"}, 0),
    ],
)
def test_a_session_keeps_as_many_executors_as_it_was_to_have(given: dict[str, str], expected: int) -> None:
    assert kept_executors(session_conf("job", given, DYNAMIC, {})) == expected


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("10.0.0.2:41234", "10.0.0.2"),
        ("10.0.0.2", "10.0.0.2"),
        ("worker1.example:80", "worker1.example"),
        ("[fd00::2]:41234", "[fd00::2]"),
        ("[fd00::2]", "[fd00::2]"),
    ],
)
def test_an_executor_that_has_just_registered_has_a_host_without_a_port(text: str, host: str) -> None:
    assert host_of(text) == host


def test_the_driver_resolves_a_host() -> None:
    assert Executor("1", "10.0.0.2", 1).address == "10.0.0.2"
    assert Executor("1", "[fd00::2]", 1).address == "fd00::2"
    assert Executor("1", "no-such-host.invalid", 1).address == "no-such-host.invalid"
