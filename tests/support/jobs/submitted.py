"""Jobs that spark-submit starts: a script, and modules of it that only `--py-files` brings to other processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyspark

from tests.support.apps import job_app
from tests.support.jobs.home import DEADLINE_S, Home, kill, wait_until
from tests.support.processes.inspection import containers_of
from tests.support.tools.places import ROOT

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
SCRIPT, QUERY = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "deployment.md").read_text("utf-8"), re.DOTALL)
"""The scripts of the page run as written."""
CHECKED = """
import json
from pathlib import Path

from shop.totals import KeyTotals, totals_app


class Checked(KeyTotals):
    # Its file comes with `--files`.
    def init(self, context):
        super().init(context)
        assert json.loads(Path("rates.json").read_text()) == {"EUR": 1}


def application():
    return totals_app(task=Checked)
"""


def write_application(folder: Path) -> tuple[str, ...]:
    """The files of the job. Returns the options that ship them."""
    folder.mkdir()
    with zipfile.ZipFile(folder / "shop.zip", "w") as archive:
        archive.writestr("shop/__init__.py", "")
        archive.write(job_app.__file__, "shop/totals.py")
    (folder / "app.py").write_text(SCRIPT, encoding="utf-8")
    (folder / "modules").mkdir()
    (folder / "modules" / "shop_job.py").write_text(CHECKED, encoding="utf-8")
    (folder / "rates.json").write_text('{"EUR": 1}', encoding="utf-8")
    return (
        *("--py-files", f"{folder / 'shop.zip'},{folder / 'modules' / 'shop_job.py'}"),
        *("--files", str(folder / "rates.json")),
    )


class Submitted:
    """A driver that spark-submit starts. The process is Spark's JVM, and the driver's Python its child."""

    def __init__(
        self,
        folder: Path,
        options: Sequence[str],
        arguments: Sequence[str],
        prefix: Sequence[str] = (),
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """`options` of spark-submit, and `arguments` of the script `app/app.py` in the folder. `prefix`: what makes the
        command run on a host."""
        self._log = folder / "submitted.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*prefix, str(SUBMIT), *options, str(folder / "app" / "app.py"), *arguments],
                cwd=folder / "app",
                env={"PYSPARK_PYTHON": sys.executable, **environ, "PENSTOCK_HOME": str(folder / "home")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def containers(self) -> list[psutil.Process]:
        """Its containers, where its JVM is the executor."""
        return containers_of([psutil.Process(self.process.pid)])

    def terminate(self) -> None:
        """SIGTERM to the process that was started, and to no other."""
        self.process.send_signal(signal.SIGTERM)

    def ended(self) -> int:
        """Wait for its end. Returns its exit status."""
        wait_until(lambda: not self.running, "the end of spark-submit", DEADLINE_S)
        return self.process.returncode


@contextmanager
def submitted(
    home: Home,
    options: Sequence[str],
    prefix: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> Iterator[Submitted]:
    """A driver with the job's configuration."""
    config = home.folder / "app" / "config.json"
    config.write_text(json.dumps(home.config), encoding="utf-8")
    with watched(Submitted(home.folder, options, [str(config)], prefix=prefix, environ=environ)) as driver:
        yield driver


@contextmanager
def watched(driver: Submitted) -> Iterator[Submitted]:
    """A driver, which is killed in the end if it still runs; its output is printed if the test fails."""
    try:
        yield driver
    except BaseException:
        print(driver.log[-12_000:])
        raise
    finally:
        if driver.running:
            root = psutil.Process(driver.process.pid)
            rest = [root, *root.children(recursive=True), *driver.containers()]
            for process in rest:
                kill(process)
            driver.process.wait(DEADLINE_S)
