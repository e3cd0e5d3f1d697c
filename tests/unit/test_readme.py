"""The examples of the README and of pages of the documentation run as written."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

import pytest

import penstock as ps
from penstock.testing import TestRunner
from tests.support.tools.places import ROOT


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def test_the_examples_of_drain(capsys: pytest.CaptureFixture[str]) -> None:
    for block in examples("docs/drain.md"):
        exec(compile(block, "drain.md", "exec"), {})
    assert capsys.readouterr().out == "[[1, 2], [3]]\n"


def test_the_example_of_latency() -> None:
    (block,) = examples("docs/latency.md")
    exec(compile(block, "latency.md", "exec"), {"__name__": "latency_page"})


def test_the_recipes() -> None:
    for block in examples("docs/recipes.md"):
        exec(compile(block, "recipes.md", "exec", dont_inherit=True), {"__name__": "recipes_page"})


def test_the_examples_of_columns() -> None:
    namespace: dict[str, Any] = {"__name__": "columns_page"}
    for block in examples("docs/columns.md"):
        exec(compile(block, "columns.md", "exec"), namespace)


def test_the_examples_of_schemas() -> None:
    namespace: dict[str, Any] = {"__name__": "schemas_page"}
    for block in examples("docs/schemas.md"):
        exec(compile(block, "schemas.md", "exec", dont_inherit=True), namespace)


def test_the_examples_of_the_page_on_headers() -> None:
    (block,) = examples("docs/headers.md")
    exec(block, {})


def test_the_examples_of_the_page_on_lakes() -> None:
    names: dict[str, Any] = {}
    for block in examples("docs/lakes.md"):
        exec(block, names)


def test_the_example_of_the_page_on_databases() -> None:
    for block in examples("docs/databases.md"):  # tests/integration/databases runs the complete one
        exec(compile(block, "databases.md", "exec"), {"__name__": "databases_page"})


def test_the_example_of_exactly_once_output() -> None:
    (block,) = examples("docs/exactly-once.md")
    exec(compile(block, "exactly-once.md", "exec"), {"__name__": "exactly_once_page"})


def test_the_example_and_its_test_run_as_written() -> None:
    example, test = examples("README.md")[:2]
    namespace: dict[str, Any] = {"__name__": "readme"}
    exec(compile(example + test, "README.md", "exec"), namespace)
    assert namespace["runner"].store("aircraft") == {"N14228": {"flights": 1, "miles": 1400}}
    assert [m.key for m in namespace["runner"].output("local.utilisation")] == ["N14228"]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_job_of_the_page_for_users_of_samza_passes_its_test(monkeypatch: pytest.MonkeyPatch) -> None:
    job, test = examples("docs/learn/from_samza.md")
    module = ModuleType("job")
    monkeypatch.setitem(sys.modules, "job", module)
    exec(compile(job, "from_samza.md", "exec"), module.__dict__)
    found: dict[str, Any] = {}
    exec(compile(test, "from_samza.md", "exec"), found)
    found["test_page_views"]()


def test_the_page_on_tests_runs_as_written() -> None:
    blocks = examples("docs/testing.md")
    assert len(blocks) == 6
    exec(compile("".join(blocks[:4]), "testing.md", "exec"), {"__name__": "testing_page"})
    exec(compile(blocks[5], "testing.md", "exec"), {"__name__": "testing_page"})


@pytest.mark.slow
@pytest.mark.kafka
def test_the_section_on_a_kafka_broker_runs_as_written() -> None:
    block = examples("docs/testing.md")[4]
    exec(compile(block, "testing.md", "exec"), {"__name__": "testing_page"})


def test_the_example_of_the_page_on_kafka() -> None:
    names: dict[str, Any] = {"__name__": "kafka_page"}
    (block,) = examples("docs/kafka.md")  # tests/integration/storage/test_pages_on_spark.py runs it with a broker
    exec(compile(block, "kafka.md", "exec"), names)
    runner = TestRunner(names["app"]).input("kafka.orders", [{"shop": "s1", "amount": 5}]).run()
    assert [message.value for message in runner.output("kafka.totals")] == [{"orders": 1, "amount": 5}]


def test_the_page_on_applications_runs_as_written() -> None:
    for block in examples("docs/applications.md"):
        exec(compile(block, "applications.md", "exec"), {"__name__": "applications_page"})


def test_the_page_on_event_time_runs_as_written() -> None:
    blocks = examples("docs/time.md")
    assert len(blocks) == 2
    exec(compile("".join(blocks), "time.md", "exec"), {"__name__": "time_page"})


def test_the_page_on_windows_runs_as_written() -> None:
    names: dict[str, object] = {"__name__": "windows_page"}
    for block in examples("docs/windows.md"):
        exec(compile(block, "windows.md", "exec"), names)


def test_the_page_on_joins_runs_as_written() -> None:
    (block,) = examples("docs/joins.md")
    exec(compile(block, "joins.md", "exec"), {"__name__": "joins_page"})


def test_the_page_on_time_to_live_runs_as_written() -> None:
    (block,) = examples("docs/ttl.md")
    exec(compile(block, "ttl.md", "exec"), {"__name__": "ttl_page"})


def test_the_page_on_changing_an_application_runs_as_written() -> None:
    names: dict[str, Any] = {"__name__": "upgrades_page"}
    for block in examples("docs/upgrades.md"):
        exec(compile(block, "upgrades.md", "exec"), names)


def test_the_page_on_repartitioning_runs_as_written() -> None:
    (block,) = examples("docs/repartitioning.md")
    exec(compile(block, "repartitioning.md", "exec"), {"__name__": "repartitioning_page"})


def test_the_page_on_tables_runs_as_written() -> None:
    for block in examples("docs/tables.md"):
        exec(compile(block, "tables.md", "exec"), {"__name__": "tables_page"})


def test_the_page_on_side_inputs_runs_as_written() -> None:
    for block in examples("docs/side-inputs.md"):
        exec(compile(block, "side-inputs.md", "exec"), {"__name__": "side_inputs_page"})


def test_the_page_on_pushed_tables_runs_as_written() -> None:
    (block,) = examples("docs/pushed-tables.md")
    exec(compile(block, "pushed-tables.md", "exec"), {"__name__": "pushed_tables_page"})


def test_the_page_on_state_of_the_key_runs_as_written() -> None:
    (block,) = examples("docs/key-state.md")
    exec(compile(block, "key-state.md", "exec"), {"__name__": "key_state_page"})


def test_the_page_on_durable_streams_runs_as_written() -> None:
    names: dict[str, object] = {"__name__": "durable_streams_page"}
    for block in examples("docs/durable-streams.md"):
        exec(compile(block, "durable-streams.md", "exec"), names)


def test_the_page_on_timers_runs_as_written() -> None:
    overdue, silent, discard = examples("docs/timers.md")
    exec(compile(overdue + silent + discard, "timers.md", "exec"), {"__name__": "timers_page"})


def test_the_page_on_stores_runs_as_written() -> None:
    use, numbers, serde = examples("docs/stores.md")
    exec(compile(use + numbers, "stores.md", "exec"), {"__name__": "stores_page"})

    found: dict[str, Any] = {"ps": ps}
    exec(compile(serde, "stores.md", "exec"), found)
    celsius = found["Celsius"]()
    assert celsius.from_bytes(celsius.to_bytes(21.5)) == 21.5


def test_the_task_of_the_page_on_metrics_runs_as_written() -> None:
    found: dict[str, Any] = {"ps": ps}
    exec(compile(examples("docs/metrics.md")[1], "metrics.md", "exec"), found)
    app = ps.TaskApplication("orders", found["Orders"])
    app.input("local.orders")
    runner = TestRunner(app, partitions=1).input("local.orders", [1, 2]).run()
    metrics = runner._running().board.metrics.snapshot()
    assert metrics.total("late", group="user.orders") == 2


def test_the_walks_of_the_architecture_pass_files_that_exist() -> None:
    walks = (ROOT / "ARCHITECTURE.md").read_text().split("## Six walks")[1].split("\n## ")[0]
    for walk in walks.split("\n- ")[1:]:
        (count,) = re.findall(r", (\d+) files:", walk)
        files = re.findall(r"`([a-z_/]+)`", walk)
        assert len(files) == int(count)
        assert [each for each in files if not (ROOT / "penstock" / f"{each}.py").is_file()] == []
