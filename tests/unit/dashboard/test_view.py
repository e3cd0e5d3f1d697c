"""The document of a large job: it stays small, whatever the job has."""

from __future__ import annotations

from dataclasses import replace

import orjson

from penstock.admin.job.inputs import InputStatus, PartitionStatus
from penstock.admin.job.status import BackendStatus, WatermarkStatus
from penstock.dashboard.view import ROWS, Seen, job_document
from penstock.dashboard.work import History, Totals
from penstock.job.shown import GraphEdge, GraphOperator, GraphStage, JobGraph, KeyWork, RunWork, TaskWork
from penstock.metrics.snapshot import CounterValue, MetricId, Snapshot, TimerValue
from penstock.side.wing import SideInputStatus
from tests.unit.dashboard.test_verdict import LAST, RUNNING

TASKS, STORES = 200, 50


def metrics(count: int) -> Snapshot:
    """10,000 metrics of all tasks and stores."""
    return Snapshot(
        {
            MetricId(f"Partition {task}", f"store.s{store}", "gets"): CounterValue(count + task)
            for task in range(TASKS)
            for store in range(STORES)
        }
    )


def large() -> Seen:
    partitions = tuple(PartitionStatus(n, 0, n, n) for n in range(TASKS))
    inputs = tuple(InputStatus(f"local.in{n}", partitions, 9, None) for n in range(5))
    status = replace(
        RUNNING,
        inputs=inputs,
        last_checkpoint=replace(LAST, task_count=TASKS, stores={f"s{n}": "" for n in range(STORES)}),
        backends=tuple(BackendStatus(f"s{n}", "blob", TASKS, TASKS) for n in range(STORES)),
        side_inputs=tuple(SideInputStatus("s1", f"local.side.{n}", n, False, False) for n in range(TASKS)),
    )
    history = History()
    for number in range(400):
        history.add(Totals.of("r", 10_000 * number, metrics(number) if number < 2 else Snapshot()))
    history.add(Totals.of("r", 9_000_000, metrics(5)))
    return Seen(status, None, (), history)


def test_a_large_job_has_a_small_page() -> None:
    assert len(metrics(1)) == TASKS * STORES
    found = job_document(large())
    assert len(orjson.dumps(found)) < 150_000
    tables = {table["title"]: table for table in found["tables"]}
    inputs = tables["Inputs, as of the last checkpoint"]
    assert len(inputs["rows"]) == ROWS
    assert inputs["note"] == "50 of 1,000, those with the most lag"
    lags = [int(row[inputs["columns"].index("lag")]) for row in inputs["rows"]]
    assert lags == sorted((n for n in range(TASKS) for _ in range(5)), reverse=True)[:ROWS]
    stores = tables["Stores, all tasks, since the last start"]
    assert len(stores["rows"]) == STORES
    assert stores["rows"][0][stores["columns"].index("gets")] == f"{sum(5 + task for task in range(TASKS)):,}"


def test_a_graph_has_rates_and_dead_letters_only_once_there_are_some() -> None:
    graph = JobGraph(
        "r",
        (GraphStage(0, (GraphOperator("in", "input"),)), GraphStage(1, (GraphOperator("sum", "process", ("s1",)),))),
        (
            GraphEdge("local.in", 0),
            GraphEdge(0, 1, "in"),
            GraphEdge(0, 1, "other"),
            GraphEdge(1, "local.out", "sum"),
            GraphEdge(0, "local.dead"),
        ),
    )

    def totals(time_ms: int, count: int, dead: int) -> Totals:
        task = "Partition 0"
        return Totals.of(
            "r",
            time_ms,
            Snapshot(
                {
                    MetricId(task, "stream.local.in", "messages-read"): CounterValue(count),
                    MetricId(task, "stage.1", "messages-actually-processed"): CounterValue(2 * count),
                    MetricId(task, "stream.local.out", "messages-sent"): CounterValue(3 * count),
                    MetricId(task, "stream.local.dead", "messages-sent"): CounterValue(dead),
                }
            ),
        )

    def rates(dead: int) -> dict[tuple[str | int, str | int], float | None]:
        history = History()
        history.add(totals(1_000, 0, 0))
        history.add(totals(2_000, 10, dead))
        edges = job_document(Seen(RUNNING, graph, (), history))["graph"]["edges"]
        return {(edge["source"], edge["target"]): edge["rate"] for edge in edges}

    assert rates(0) == {("local.in", 0): 10.0, (0, 1): 20.0, (1, "local.out"): 30.0}
    assert rates(4)[0, "local.dead"] == 4.0


def test_an_edge_that_shares_its_stream_has_no_rate() -> None:
    stages = tuple(GraphStage(number, (GraphOperator(f"op{number}", "map"),)) for number in range(3))
    edges = (GraphEdge("local.in", 0), GraphEdge(0, 2, "a"), GraphEdge(1, 2, "b"), GraphEdge("local.in", 1))
    history = History()
    for time_ms, count in ((1_000, 0), (2_000, 100)):
        values = {
            MetricId("Partition 0", "stream.local.in", "messages-read"): CounterValue(count),
            MetricId("Partition 0", "stage.2", "messages-actually-processed"): CounterValue(count),
        }
        history.add(Totals.of("s", time_ms, Snapshot(values)))
    found = job_document(Seen(RUNNING, JobGraph("r", stages, edges), (), history))["graph"]
    assert {edge["rate"] for edge in found["edges"]} == {None}
    assert [stage["rate"] for stage in found["stages"]] == [None, None, 100.0]
    assert found["streams"] == [{"name": "local.in", "rate": 100.0, "lag": None}]


def test_what_is_not_known_of_a_store_is_empty() -> None:
    history = History()
    metrics = {MetricId("job", "store.planes", "tables-version"): CounterValue(3)}
    history.add(Totals.of("s", 1_000, Snapshot(metrics)))
    tables = {table["title"]: table for table in job_document(Seen(RUNNING, None, (), history))["tables"]}
    assert tables["Stores, all tasks, since the last start"]["rows"] == [["planes", *[""] * 7]]


def test_the_page_finds_the_hot_key_the_busy_task_and_the_slow_operator() -> None:
    stages = (
        GraphStage(0, (GraphOperator("input-1", "input", (), "kafka.orders"), GraphOperator("parse", "map"))),
        GraphStage(1, (GraphOperator("score", "process", ("s1",)),)),
    )
    graph = JobGraph("r", stages, (GraphEdge("kafka.orders", 0), GraphEdge(0, 1, "by-key")))

    def totals(time_ms: int, count: int) -> Totals:
        own: dict[MetricId, CounterValue | TimerValue] = {
            MetricId("Partition 3", "stage.1", "messages-actually-processed"): CounterValue(9 * count),
            MetricId("Partition 1", "stage.1", "messages-actually-processed"): CounterValue(count),
            MetricId("Partition 3", "stage.1", "process-ns"): TimerValue(1, 900_000_000, 0),
            MetricId("Partition 3", "operator.score", "busy-ns"): TimerValue(1, count * 9_000_000, 0),
            MetricId("Partition 0", "operator.input-1", "busy-ns"): TimerValue(1, count * 1_000_000, 0),
        }
        return Totals.of("s", time_ms, Snapshot({**own}))

    history = History()
    history.add(totals(1_000, 0))
    history.add(totals(11_000, 1_000))
    history.lags.append((11_000, 0.0))
    status = replace(RUNNING, watermarks=(WatermarkStatus("input-1", 5, 7),))
    tasks = (TaskWork(1, 3, 4_000, 9_000, "score"), TaskWork(1, 1, 1_000, 300))
    work = RunWork(7, 9_999, 2_000, ((1, 5_000),), tasks, (KeyWork(1, "customer-42", 4_000, 0.8),))
    page = job_document(Seen(status, graph, (), history, 11_000, work))
    tables = {table["title"]: table for table in page["tables"]}
    assert tables["The running batch, by stage"]["rows"] == [
        ["0", "kafka.orders, parse", "", ""],
        ["1", "score", "5,000", "score (1 task)"],
    ]
    assert tables["The running batch, its busiest tasks"]["rows"][0] == ["3", "1", "4,000", "80%", "9.0 s", "score"]
    assert tables["Operators by time, in the last minute"]["rows"][0][:4] == ["score", "1", "9.0 s", "90%"]
    assert tables["Operators by time, in the last minute"]["rows"][1][0] == "kafka.orders"
    assert tables["Busiest tasks, in the last minute"]["rows"][0][:4] == ["3", "1", "9,000", "90%"]
    keys = tables["Keys with the most messages, in the last minute"]
    assert keys["rows"] == [["customer-42", "1", "about 4,000", "80%"]]
    assert tables["Event time, as of the last checkpoint"]["rows"][0][0] == "kafka.orders"
    assert [each["id"] for each in page["graph"]["stages"][0]["operators"]] == ["kafka.orders", "parse"]
    assert "Key customer-42 has 80% of the messages of stage 1: one task gets all of them" in page["verdict"]["why"]
    assert "Operator `score` takes 90% of the operators' time" in page["verdict"]["why"]


def test_the_lag_chart_shows_what_waits_now_although_no_metrics_come() -> None:
    history = History()
    for number in range(3):
        history.saw_inputs(1_000 * number, {"kafka.orders": 23_499.0})
    series = job_document(Seen(RUNNING, None, (), history))["series"]
    assert (series["lag"], series["lag_times"]) == ({"kafka.orders": [23_499.0] * 3}, [0, 1_000, 2_000])
