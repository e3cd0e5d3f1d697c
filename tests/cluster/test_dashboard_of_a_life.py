"""The dashboard in a browser, through a job's life: a run, a crash, a take-over, a drain, a restart and a failure.

With `PENSTOCK_SCREENSHOTS=docs/images` it makes the pictures of the documentation.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from penstock import admin
from tests.support.jobs.dashboards import dashboard
from tests.support.jobs.home import wait_until
from tests.support.tools.browser import browser, complaints, resize
from tests.support.tools.cli import call, command, own_home

pytestmark = [pytest.mark.spark, pytest.mark.slow]

START_S = 180.0
TOKEN = "the-token-of-a-life"
APPLICATION = """
import penstock as ps

app = ps.StreamApplication("clicks")
clicks = app.input("local.clicks")
pages = clicks.partition_by(lambda click: click["page"], id="by-page")
pages.aggregate({"clicks": ps.Count(), "mean": ps.Mean(lambda click: 1000 / click["ms"])}, id="pages").send_to(
    app.output("local.pages")
)
slow = clicks.filter(lambda click: click["ms"] > 900).partition_by(lambda click: click["user"], id="by-user")
slow.window(ps.Windows.tumbling("10s", aggregates={"slow": ps.Count()}), id="slow").send_to(app.output("local.slow"))
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own_home(tmp_path, monkeypatch)
    monkeypatch.setenv("PENSTOCK_SECRET_TOKEN", TOKEN)
    (tmp_path / "clicks.py").write_text(APPLICATION)
    for stream in ("clicks", "pages", "slow"):
        call("stream", "create", stream, "--partitions", "4")
    return tmp_path


class Feeder:
    """Publishes clicks again and again, until it is closed."""

    def __init__(self, folder: Path) -> None:
        lines = [{"page": f"/p{n % 37}", "user": f"u{n % 101}", "ms": 1 + n * 7 % 1000} for n in range(500)]
        (folder / "clicks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        self._file = folder / "clicks.jsonl"
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        stream = admin.open_stream("clicks")
        while not self._closing.wait(0.5):
            admin.publish(stream.system, "clicks", str(self._file), admin.PublishOptions())

    def close(self) -> None:
        self._closing.set()
        self._thread.join()


@pytest.fixture
def feeder(project: Path) -> Iterator[Feeder]:
    made = Feeder(project)
    yield made
    made.close()


class Runs:
    """The drivers that a test has started."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[bytes]] = []

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        config = ["spark.master=local[2]", "task.commit.ms=2000", "job.lease.ms=4000", *more]
        options = [word for each in config for word in ("-c", each)]
        with Path(f"run-{len(self.all)}.log").open("wb") as log:
            made = subprocess.Popen(command("run", "clicks.py:app", *options), stdout=log, stderr=log)
        self.all.append(made)
        return made


@pytest.fixture
def runs() -> Iterator[Runs]:
    made = Runs()
    yield made
    for each in made.all:
        if each.poll() is None:
            each.kill()
        each.wait()


def text_of(page: WebDriver, css: str = "body") -> str:
    return "\n".join(each.text for each in page.find_elements(By.CSS_SELECTOR, css))


def says(page: WebDriver, *texts: str) -> None:
    wait_until(lambda: all(text in text_of(page) for text in texts), f"{texts} on the page", START_S)


def click(page: WebDriver, name: str) -> None:
    found = "[...document.querySelectorAll('button')].find(button => button.textContent === arguments[0])"
    script = f"const button = {found}; button?.click(); return !!button"
    wait_until(lambda: page.execute_script(script, name), f"the button {name!r}")


def picture(page: WebDriver, name: str, width: int = 1400, height: int = 900) -> None:
    if folder := os.environ.get("PENSTOCK_SCREENSHOTS"):
        resize(page, width, height)
        page.execute_script("scrollTo(0, 0)")
        page.save_screenshot(str(Path(folder) / f"dashboard-{name}.png"))
        resize(page, 1400, 900)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_a_life(project: Path, feeder: Feeder, runs: Runs) -> None:
    port = free_port()
    own = ("job.dashboard.port=" + str(port), "job.dashboard.token=${env:PENSTOCK_SECRET_TOKEN}")
    first = runs.start(*own)
    with dashboard() as served, browser() as page, browser(400, 800, dark=True) as phone:
        page.get(f"{served.url_with_token}&job=clicks-1")
        says(page, "Keeps up", "messages a second")
        wait_until(lambda: len(page.find_elements(By.CSS_SELECTOR, ".chart svg")) >= 3, "the charts", START_S)
        says(page, "commit", "kept: can be restored")
        graph = text_of(page, ".graph")
        assert all(name in graph for name in ("local.clicks", "stage 0", "stage 1", "local.pages", "local.slow"))
        picture(page, "running", height=985)

        phone.get(f"http://127.0.0.1:{port}/#token={TOKEN}")
        says(phone, "Keeps up")
        assert phone.execute_script("return document.documentElement.scrollWidth") <= 400
        picture(phone, "phone", 400, 540)

        first.send_signal(signal.SIGKILL)
        says(page, "Failed", "its driver is gone")
        says(phone, "what you see is old")
        picture(page, "crash")

        second = runs.start(*own)
        says(page, "Keeps up")
        with admin.open_job("clicks") as job:
            assert f"pid {second.pid}" in text_of(page, "#section-facts")
            assert str(admin.status(job, wait=False).epoch) in text_of(page, "#section-facts")
        says(phone, "Keeps up")  # the page of the new driver, at the same port

        click(page, "drain…")
        says(page, "reads no more input")
        picture(page, "drain")
        click(page, "Yes: drain")
        assert second.wait(START_S) == 0
        says(page, "Not running", "drained")
        click(page, "Close")

        runs.start()
        says(page, "Keeps up")
        poison = admin.open_stream("clicks")
        (project / "poison.jsonl").write_text('{"page": "/p1", "user": "u1", "ms": 0}\n')
        admin.publish(poison.system, "clicks", str(project / "poison.jsonl"), admin.PublishOptions())
        says(page, "Failed", "ZeroDivisionError", "In operator pages, at stream local.clicks partition")
        assert "1000 / click" in text_of(page, "#traceback")
        picture(page, "failure")
        # Before the first start there was no such job.
        assert [each for each in complaints(page) if "404 (Not Found)" not in each] == []
