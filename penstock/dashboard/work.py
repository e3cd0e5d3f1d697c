"""Tables of the work of a run: its batch by stage, its operators and tasks by time, and its keys by messages. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from penstock.base.wording import counted, duration_text, listed
from penstock.dashboard.rates import History, Interval, busy_ms
from penstock.facts import FactTable
from penstock.job.shown import GraphStage, JobGraph, RunWork

LONG_MS = 3_000
"""A batch that has run for less is not shown by itself."""
_MOST = 10
_WINDOW_MS = 60_000


def shown_id(graph: JobGraph | None, operator: str) -> str:
    """The stream of an input, the id of any other operator."""
    streams = {each.id: each.stream for stage in _stages_of(graph) for each in stage.operators}
    return streams.get(operator) or operator


def work_tables(graph: JobGraph | None, work: RunWork, history: History, now_ms: int) -> Iterator[FactTable]:
    """The tables that say why a job is slow, those of the running batch first."""
    lately = [each for each in history.of_this_start if now_ms - each.end_ms < _WINDOW_MS]
    if work.batch is not None and now_ms - work.since_ms >= LONG_MS:
        yield _stages(graph, work, now_ms)
        yield _tasks_now(graph, work)
    yield _operators(graph, lately)
    yield _tasks_lately(graph, lately)
    yield FactTable.of(
        "Keys with the most messages, in the last minute",
        "key, stage>, messages>, share>",
        ((each.key, each.stage, f"about {each.messages:,}", f"{each.share:.0%}") for each in work.keys),
        "By a sample. One task gets all messages of a key: more tasks do not help against a key with a large share."
        if work.keys
        else "",
    )


def _stages_of(graph: JobGraph | None) -> tuple[GraphStage, ...]:
    return () if graph is None else graph.stages


def _names(graph: JobGraph | None, stage: int) -> str:
    return ", ".join(op.stream or op.id for each in _stages_of(graph) if each.number == stage for op in each.operators)


def _stages(graph: JobGraph | None, work: RunWork, now_ms: int) -> FactTable:
    processed = dict(work.processed)
    numbers = sorted({*processed, *(each.number for each in _stages_of(graph))})
    rows = []
    for number in numbers:
        busy = Counter(each.operator for each in work.tasks if each.stage == number and each.operator)
        at = listed([f"{shown_id(graph, name)} ({counted(tasks, 'task')})" for name, tasks in busy.most_common(3)])
        rows.append((number, _names(graph, number), processed.get(number), at))
    took = duration_text(max(0, now_ms - work.since_ms))
    return FactTable.of(
        "The running batch, by stage",
        "stage>, operators, messages so far>, busy now",
        rows,
        f"Batch {work.batch} of {counted(work.messages, 'message')}, for {took}. Stages in Spark's workers do not say "
        "how far they are.",
    )


def _tasks_now(graph: JobGraph | None, work: RunWork) -> FactTable:
    totals = dict(work.processed)
    rows = [
        (
            each.task,
            each.stage,
            each.messages,
            f"{each.messages / totals[each.stage]:.0%}" if totals.get(each.stage) else None,
            duration_text(each.process_ms),
            shown_id(graph, each.operator) if each.operator else "",
        )
        for each in work.tasks
    ]
    headings = "task>, stage>, messages so far>, share>, time>, busy now"
    return FactTable.of("The running batch, its busiest tasks", headings, rows)


def _operators(graph: JobGraph | None, lately: list[Interval]) -> FactTable:
    spent = busy_ms(lately)
    stages = {op.id: stage.number for stage in _stages_of(graph) for op in stage.operators}
    seconds = sum(each.seconds for each in lately) or 1.0
    rows = [
        (
            shown_id(graph, operator),
            stages.get(operator),
            duration_text(ms),
            f"{ms / spent.total():.0%}",
            f"{ms / seconds / 1000:.1f}",
        )
        for operator, ms in spent.most_common(_MOST)
        if ms
    ]
    return FactTable.of("Operators by time, in the last minute", "operator, stage>, time>, share>, cores>", rows)


def _tasks_lately(graph: JobGraph | None, lately: list[Interval]) -> FactTable:
    messages: Counter[tuple[int, str]] = Counter()
    spent: Counter[tuple[int, str]] = Counter()
    stages: Counter[int] = Counter()
    for interval in lately:
        for at, share in interval.tasks.items():
            messages[at] += round(share.messages)
            spent[at] += round(share.process_ms)
            stages[at[0]] += round(share.messages)
    chosen = {*dict(messages.most_common(_MOST // 2)), *dict(spent.most_common(_MOST // 2))}
    rows = [
        (
            source.removeprefix("Partition "),
            stage,
            messages[stage, source],
            f"{messages[stage, source] / stages[stage]:.0%}" if stages[stage] else None,
            duration_text(spent[stage, source]),
        )
        for stage, source in sorted(chosen, key=lambda at: (-spent[at], -messages[at], at))
    ]
    return FactTable.of("Busiest tasks, in the last minute", "task>, stage>, messages>, share>, time>", rows)
