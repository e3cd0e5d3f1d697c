"""The tables of a notebook: their cells, and nothing that is markup."""

from __future__ import annotations

import threading
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from penstock import admin
from penstock.dashboard import displays
from penstock.driver.job import Job
from penstock.driver.part import StopRequest
from penstock.driver.show.progress import JobProgress, ProgressBoard, SourceProgress
from penstock.facts import Column, Grid, facts_html, grid_html, plot_svg
from penstock.job.shown import Failure
from tests.support.jobs.home import wait_until
from tests.support.stores.stopped_job import StoppedJob, saved

HOSTILE = '<script>alert("x")</script>&<b>'
TAGS = {"table", "caption", "thead", "tbody", "tr", "th", "td"}


class Cells(HTMLParser):
    """The texts of all cells, row by row."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        assert all(name == "style" for name, _ in attrs)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_every_text_is_escaped() -> None:
    table = grid_html(Grid(HOSTILE, (Column("name"), Column(HOSTILE)), [(HOSTILE, 1200), (None, True)]))
    assert Cells(table).rows == [["name", HOSTILE], [HOSTILE, "1,200"], ["", "True"]]
    assert Cells(facts_html([(HOSTILE, HOSTILE), ("none", None), ("empty", "")])).rows == [[HOSTILE, HOSTILE]]


def progress() -> JobProgress:
    source = SourceProgress(HOSTILE, {"0": 0}, {"0": 30}, {"0": 1230}, 30, lag=1200, held_back_by="0")
    return JobProgress(
        id="u", run_id="r", name="shop-1", timestamp="now", batch_id=3, num_input_rows=30, num_output_rows=7,
        dead_letters=0, processed_rows_per_second=1500.0, duration_ms={}, sources=(source,), total_input_rows=30,
        last_checkpoint="c1", container_bytes=0, batch_duration=20, way="direct",
    )  # fmt: skip


def test_a_job_before_its_first_batch_and_after_it() -> None:
    board = ProgressBoard()
    board.update(phase="restoring")
    job = Job("shop-1", "r", board, StopRequest())
    assert Cells(job._repr_html_()).rows == [["job", "shop-1"], ["phase", "restoring"], ["run", "r"]]
    board.update(phase="running", last=progress())
    shown = Cells(job._repr_html_()).rows
    assert shown[:2] == [["phase", "running"], ["run", "r"]]
    assert shown[-1] == [HOSTILE, "30", "1,200", "0"]
    assert ["messages", "30 in, 7 out; 1,500 messages a second"] in shown
    assert ["behind", "1,200"] in shown
    assert ["dead letters", "0"] not in shown


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The outputs and updates of a notebook's cells."""
    shell = InteractiveShell.instance()
    publisher = CapturingDisplayPublisher(parent=shell)
    monkeypatch.setattr(shell, "display_pub", publisher)
    return publisher.outputs


def test_a_job_is_drawn_again_until_it_ends(published: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(displays, "EVERY_S", 0.01)
    board = ProgressBoard()
    job = Job("shop-1", "r", board, StopRequest())
    board.update(phase="restoring")
    formatter = InteractiveShell.instance().display_formatter
    assert formatter is not None
    formatter.format(job)  # the last line of a cell
    wait_until(lambda: len(published) > 2, "an update")
    assert "restoring" in published[0]["data"]["text/html"]
    assert not published[0]["update"]
    assert {each["transient"]["display_id"] for each in published} == {published[0]["transient"]["display_id"]}
    board.update(phase="running", last=progress())
    wait_until(lambda: "30 in, 7 out" in published[-1]["data"]["text/html"], "the batch")

    job._ipython_display_()  # in another cell: the first one stays as it is
    ids = {each["transient"]["display_id"] for each in published}
    assert len(ids) == 2
    board.update(phase="ended")
    job.ending.done.set()
    wait_until(lambda: "ended" in published[-1]["data"]["text/html"], "the end")
    wait_until(lambda: not [each for each in threading.enumerate() if each.name == "penstock-notebook"], "no thread")


def test_a_plot() -> None:
    assert plot_svg("Lag", "messages", {"a": [1.0]}) == ""
    found = plot_svg("Lag", "messages", {HOSTILE: [0.0, 50.0, 100.0], "b": [0.0, 0.0, 25.0]})
    assert "up to 100" in found
    assert 'points="0.0,90.0 240.0,45.0 480.0,0.0"' in found
    assert 'points="0.0,90.0 240.0,90.0 480.0,67.5"' in found
    assert "<script" not in found
    assert "b: 25 messages" in found


def test_the_status_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    StoppedJob(tmp_path / "home").run(saved(1, (1, 2), ended=None), saved(2))
    with admin.open_all_jobs(overrides={"job.root": str(tmp_path / "home" / "jobs")}) as (job,):
        status = admin.status(job)
    shown = Cells(status._repr_html_()).rows
    assert shown[0] == ["job", status.job]
    partitions = [part for each in status.inputs for part in each.partitions]
    for part in partitions:
        assert [str(part.partition), str(part.next_offset), str(part.upcoming), str(part.lag)] in [r[1:] for r in shown]
    failed = replace(status, status="failed", failure=Failure(1, HOSTILE, "message 3"))
    rows = Cells(failed._repr_html_()).rows
    assert ["status", f"failed: {HOSTILE}"] in rows
    assert ["in", "message 3"] in rows
