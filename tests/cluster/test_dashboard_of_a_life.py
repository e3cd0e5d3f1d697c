"""The dashboard in a browser, through a job's life: a run, a crash, a take-over, a drain, a restart and a failure.

It makes the pictures of docs/dashboard.md: `make pictures` has it put them there.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from penstock import admin
from tests.support.jobs.dashboards import dashboard
from tests.support.jobs.home import wait_until
from tests.support.tools.browser import browser, click, complaints, resize
from tests.support.tools.cli import call, command, own_home
from tests.support.tools.fixtures import fixture_of

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
        self.is_paused = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        stream = admin.open_stream("clicks")
        while not self._closing.wait(0.5):
            if not self.is_paused:
                admin.publish(stream.system, "clicks", str(self._file), admin.PublishOptions())

    def close(self) -> None:
        self._closing.set()
        self._thread.join()


feeder = fixture_of(Feeder, using=("project",))


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


RENAME = """
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode())
        for (const [own, other] of arguments[0])
            if (texts.currentNode.data.includes(own))
                texts.currentNode.data = texts.currentNode.data.replaceAll(own, other);
"""


class Pictures:
    """Takes pictures, in which neither this host nor its folders have their names."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self._folder = Path(os.environ.get("PENSTOCK_SCREENSHOTS", project / "pictures")).resolve()
        self._folder.mkdir(exist_ok=True)
        self._names = {str(project): "/srv/clicks", socket.gethostname(): "laptop"}

    def of_page(self, page: WebDriver, name: str, css: str = "") -> str:
        """Take the window, or the part of the page that `css` selects. Returns the text in it."""
        file = str(self._folder / f"{name}.png")
        for _ in range(20):
            page.execute_script(f"scrollTo(0, 0); {RENAME}", list(self._names.items()))
            part = page.find_element(By.CSS_SELECTOR, css or "body")
            part.screenshot(file) if css else page.save_screenshot(file)
            if not any(each in part.text for each in self._names):
                return str(part.text)
        raise AssertionError(f"{name}: the page draws itself again all the time, with the names of this host")

    def of_document(self, page: WebDriver, name: str, html: str) -> str:
        """The same of a document of one element."""
        file = self._project / f"{name}.html"
        file.write_text(f'<meta charset="utf-8"><style>{STYLE}</style>{html}', "utf-8")
        page.get(file.as_uri())
        return self.of_page(page, name, "body > *")

    def of_terminal(self, page: WebDriver, name: str, *arguments: str) -> str:
        """The same of a command and its output."""
        text = "\n".join(line.rstrip() for line in call(*arguments)[0].rstrip().splitlines())
        for own, other in self._names.items():
            text = text.replace(own, other)
        terminal = Console(record=True, file=StringIO(), width=max(map(len, text.splitlines())), highlight=False)
        terminal.print(f"$ penstock {' '.join(arguments)}", style="bold", markup=False)
        terminal.print(text, markup=False, emoji=False, soft_wrap=True)
        return self.of_document(page, name, terminal.export_html(inline_styles=True, code_format=TERMINAL))


STYLE = """
    body { margin: 0; font: 14px sans-serif }
    body > * { display: inline-block; padding: 16px 20px }
    .terminal { background: #1e1e1e; color: #ddd }
    pre { margin: 0; font: 13px monospace }
    .cell { background: #f7f7f7; border: 1px solid #ddd; padding: 8px; margin-bottom: 12px }
    table { border-collapse: collapse; font-size: 12px; margin-bottom: 12px }
    th, td { padding: 4px 10px }
    tr:nth-child(even) { background: #f5f5f5 }
    caption { font-weight: bold; padding: 4px 10px }
"""
FACTS = """
    main { padding: 16px }
    section { display: none }
    #section-facts, [id^="section-table-Drained"], [id^="section-table-Inputs"] { display: block; grid-column: 1 / -1 }
"""
RESTYLE = """
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(arguments[0]);
    document.adoptedStyleSheets = [sheet];
"""
TERMINAL = '<div class="terminal"><pre>{code}</pre></div>'
CELL = 'from penstock import admin\n\nwith admin.open_job("clicks") as job:\n    status = admin.status(job)\nstatus'


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def takes_pictures_of_facts(pictures: Pictures, page: WebDriver) -> None:
    """The facts of one job in a terminal, on the page and in a notebook."""
    with admin.open_job("clicks") as job:
        status = admin.status(job)
    notebook = f'<div><pre class="cell">{CELL}</pre>{status._repr_html_()}</div>'
    says(page, *(wanted := [str(status.run_id), status.last_checkpoint.id if status.last_checkpoint else "none"]))
    says(page, "Drained: what was processed", "Inputs, as of the last checkpoint")
    resize(page, 900, 1000)
    page.execute_script(RESTYLE, FACTS)
    texts = [pictures.of_page(page, "facts-page", "main")]
    page.execute_script(RESTYLE, "")
    resize(page, 1400, 900)
    with browser() as other:
        texts += [
            pictures.of_terminal(other, "facts-terminal", "status", "clicks"),
            pictures.of_document(other, "facts-notebook", notebook),
        ]
    for value in [*wanted, "local.clicks", "/srv/clicks/home/jobs", "what was processed"]:
        assert [value in text for text in texts] == [True] * 3, f"{value}: {texts}"


def test_a_life(project: Path, feeder: Feeder, runs: Runs) -> None:
    port, pictures = free_port(), Pictures(project)
    own = ("job.dashboard.port=" + str(port), "job.dashboard.token=${env:PENSTOCK_SECRET_TOKEN}")
    first = runs.start(*own)
    with dashboard() as served, browser() as page, browser(400, 800, dark=True) as phone:
        page.get(f"{served.url_with_token}&job=clicks-1")
        says(page, "Keeps up", "messages a second")
        wait_until(lambda: len(page.find_elements(By.CSS_SELECTOR, ".chart svg")) >= 3, "the charts", START_S)
        says(page, "commit", "retained")
        graph = text_of(page, ".graph")
        assert all(name in graph for name in ("local.clicks", "stage 0", "stage 1", "local.pages", "local.slow"))
        resize(page, 1400, 985)
        pictures.of_page(page, "dashboard-running")
        resize(page, 1400, 900)

        phone.get(f"http://127.0.0.1:{port}/#token={TOKEN}")
        says(phone, "Keeps up")
        assert phone.execute_script("return document.documentElement.scrollWidth") <= 400

        first.send_signal(signal.SIGKILL)
        says(page, "Failed", "its driver is gone")
        says(phone, "what you see is old")

        second = runs.start(*own)
        says(page, "Keeps up")
        with admin.open_job("clicks") as job:
            assert f"pid {second.pid}" in text_of(page, "#section-facts")
            assert str(admin.status(job, wait=False).epoch) in text_of(page, "#section-facts")
        says(phone, "Keeps up")  # the page of the new driver, at the same port

        click(page, "drain…")
        says(page, "reads no more input")
        click(page, "Yes: drain")
        assert second.wait(START_S) == 0
        says(page, "Not running", "drained")
        click(page, "Close")
        feeder.is_paused = True
        takes_pictures_of_facts(pictures, page)
        feeder.is_paused = False

        runs.start()
        says(page, "Keeps up")
        poison = admin.open_stream("clicks")
        (project / "poison.jsonl").write_text('{"page": "/p1", "user": "u1", "ms": 0}\n')
        admin.publish(poison.system, "clicks", str(project / "poison.jsonl"), admin.PublishOptions())
        says(page, "Failed", "ZeroDivisionError", "In operator pages, at stream local.clicks partition")
        assert "1000 / click" in text_of(page, "#traceback")
        # Before the first start there was no such job.
        assert [each for each in complaints(page) if "404 (Not Found)" not in each] == []
