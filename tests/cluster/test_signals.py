"""Signals to a job's processes: SIGTERM and Ctrl-C as a process group, a control group or a user sends them; and
scripts that end while their jobs run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import NotFoundError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.system.local import LocalSystem
from tests.support.jobs.home import wait_until
from tests.support.processes.inspection import HEARD, containers_of, has_ended, hear_ctrl_c, print_logs, write_stacks
from tests.support.processes.python import PENSTOCK, run_python

pytestmark = pytest.mark.spark

DEADLINE_S = 180.0
CONFIG = {"spark.master": "local[2]", "job.batch.max.messages": 80, "task.commit.ms": 600_000}
APPLICATION = f"""
import sys, time
from pathlib import Path
import penstock as ps

HERE = Path(__file__).resolve().parent


class Count(ps.StreamTask):
    def init(self, context):
        self.counts = context.store("counts")

    def process(self, envelope, collector, coordinator):
        time.sleep(0.01)
        while (HERE / "blocks").exists():
            time.sleep(0.05)
        count = (self.counts.get(envelope.key) or 0) + 1
        self.counts.put(envelope.key, count)
        collector.send("counts", key=envelope.key, value=count)


app = ps.StreamApplication("signals")
app.store("counts", key=ps.String(), value=ps.Json())
app.output("local.counts", key=ps.String(), value=ps.Json())
app.input("local.numbers").partition_by(lambda v: str(v["n"]), key=ps.String()).process(Count, stores=["counts"])

if __name__ == "__main__":
    job = app.run({CONFIG!r})
    if sys.argv[1] == "awaits":
        job.await_termination()
        print("after the job", flush=True)
    elif sys.argv[1] == "ends":
        while not (HERE / "end").exists():
            time.sleep(0.05)
        assert not sys.argv[2:], "the last words of the script"
    else:
        while True:
            time.sleep(60)
"""
FROZEN = f"""
import signal
from penstock.spark import job
from penstock.spark.session import gateway
from signals import app

def stop_frozen(context):
    gateway._CurrentGateway.jvm.process.send_signal(signal.SIGSTOP)
    gateway.stop_context(context)

gateway._STOP_SECONDS = 1.0
job.stop_context = stop_frozen
app.run({CONFIG!r}).await_termination()
print("after the job", flush=True)
"""
"""Spark's JVM stands still when it is to stop."""
NOISE = re.compile(r"incubator|log4j|log level|NativeCodeLoader|Failed to cancel|Traceback|Exception|Error")
LOSS = re.compile(r"container \S+(: | \(process)")
"""The text about a container that is lost; a slow start names containers as well."""


class Run:
    """A job as a process, the leader of its group."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        self.folder = folder
        with (folder / "stderr").open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                cwd=folder,
                env={**os.environ, **HEARD, "PENSTOCK_HOME": str(folder / "home")},
                stdout=file,
                stderr=file,
                start_new_session=True,
                preexec_fn=hear_ctrl_c,
            )

    @property
    def log(self) -> str:
        return (self.folder / "stderr").read_text()

    def explain(self, started: list[psutil.Process]) -> None:
        """Print all there is to know of a run that failed: what every process does that has not ended, and the logs."""
        left = [process for process in started if process.is_running()]
        if self.process.poll() is None:
            left = list(dict.fromkeys([*self.processes(), *left]))
        write_stacks(left, self.folder / "stderr")
        print_logs(self.folder / "stderr", self.folder)

    def await_log(self, text: str) -> None:
        """Until the log has the text."""
        self._await(lambda: text in self.log)

    def await_output(self) -> None:
        """Until a batch has ended, and the next one runs."""
        self._await(lambda: self._length() > 0)

    def _length(self) -> int:
        admin = LocalSystem("local", str(self.folder / "home" / "streams")).admin()
        try:
            return sum(ends.upcoming for ends in admin.offsets("counts").values())
        except NotFoundError:
            return 0
        finally:
            admin.close()

    def _await(self, condition: object) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():  # type: ignore[operator]
            assert self.process.poll() is None, f"ended: {self.log}"
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def processes(self) -> list[psutil.Process]:
        """The driver, and all that it started."""
        driver = psutil.Process(self.process.pid)
        found = [driver, *driver.children(recursive=True)]
        return list(dict.fromkeys([*found, *containers_of(found)]))

    def jvm(self) -> psutil.Process:
        return next(process for process in self.processes() if process.name() == "java")

    def wait(self) -> int:
        return self.process.wait(DEADLINE_S)

    @property
    def last(self) -> CheckpointRecord:
        store = open_store((self.folder / "home" / "jobs").as_uri())
        try:
            record = CheckpointLog(store, JobPaths("signals", "1")).read().latest
        finally:
            store.close()
        assert record is not None
        return record

    def stopped_cleanly(self) -> bool:
        return self.last.ended == "stopped" and self.last.batch > 0


@contextmanager
def running(folder: Path, *command: str) -> Iterator[Run]:
    run = Run(folder, list(command))
    started: list[psutil.Process] = []
    try:
        run.await_output()
        started = run.processes()
        assert containers_of(started), "its containers are among those that must end"
        yield run
        _, left = psutil.wait_procs(started, timeout=DEADLINE_S)
        assert not left, f"these outlive the driver: {left}"
    except BaseException:
        run.explain(started)
        raise
    finally:
        for process in [*started, psutil.Process(run.process.pid)] if run.process.poll() is None else started:
            if process.is_running():
                process.kill()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the application and its input, to be copied."""
    folder = tmp_path_factory.mktemp("published")
    (folder / "signals.py").write_text(APPLICATION)
    (folder / "numbers.jsonl").write_text("\n".join(json.dumps({"n": n % 7}) for n in range(5000)))
    for arguments in ("create numbers --partitions 2", "publish numbers --file numbers.jsonl"):
        environ = {"PENSTOCK_HOME": str(folder / "home")}
        run_python(*PENSTOCK, "stream", *arguments.split(), folder=folder, environ=environ)
    return folder


@pytest.fixture
def folder(published: Path, tmp_path: Path) -> Path:
    return shutil.copytree(published, tmp_path, dirs_exist_ok=True)


PENSTOCK_RUN = (
    "-m",
    "penstock.cli",
    "run",
    "signals.py:app",
    *(word for key, value in CONFIG.items() for word in ("-c", f"{key}={value}")),
)


@pytest.mark.slow
def test_sigterm_to_the_process_group_is_a_clean_stop_without_noise(folder: Path) -> None:
    with running(folder, *PENSTOCK_RUN) as run:
        os.killpg(run.process.pid, signal.SIGTERM)
        assert run.wait() == 0
    assert run.stopped_cleanly()
    assert not NOISE.search(run.log), run.log


@pytest.mark.slow
def test_sigterm_to_every_process_is_a_clean_stop(folder: Path) -> None:
    """As systemd sends it to a control group."""
    with running(folder, *PENSTOCK_RUN) as run:
        for process in run.processes():
            with suppress(psutil.NoSuchProcess):  # a worker may have gone with the one that started it
                process.terminate()
        assert run.wait() == 0
    assert run.stopped_cleanly()
    assert not LOSS.search(run.log), run.log


@pytest.mark.slow
def test_ctrl_c_twice_ends_at_once_without_a_traceback(folder: Path) -> None:
    # A batch lasts for more than a second, so that the run has not ended by the second signal.
    with running(folder, *PENSTOCK_RUN, "-c", "job.batch.max.messages=400") as run:
        os.killpg(run.process.pid, signal.SIGINT)
        run.await_log("a second signal stops at once")
        time.sleep(0.6)  # two signals within half a second are one
        os.killpg(run.process.pid, signal.SIGINT)
        run.wait()
    assert not NOISE.search(run.log), run.log


@pytest.mark.slow
def test_a_killed_jvm_is_reported_as_that(folder: Path) -> None:
    with running(folder, *PENSTOCK_RUN) as run:
        jvm = run.jvm()
        jvm.kill()
        assert run.wait() == 1
    assert f"error: Spark's JVM (process {jvm.pid}) was killed by SIGKILL (9" in run.log
    assert f"The state is as of checkpoint {run.last.id}" in run.log
    assert not re.search("Traceback|unexpected", run.log), run.log


@pytest.mark.slow
def test_a_job_ends_though_spark_does_not(folder: Path) -> None:
    with running(folder, "-c", FROZEN) as run:
        jvm = run.jvm()
        run.process.terminate()
        assert run.wait() == 0
    assert run.stopped_cleanly()
    assert f"Spark's JVM (process {jvm.pid}) did not stop within 1 s: killed" in run.log
    assert "after the job" in run.log


@pytest.mark.slow
def test_nothing_outlives_a_killed_driver(folder: Path) -> None:
    with running(folder, *PENSTOCK_RUN) as run:
        run.process.kill()
        run.wait()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_script_that_waits_goes_on_after_the_last_commit(folder: Path, number: int) -> None:
    with running(folder, "signals.py", "awaits") as run:
        os.killpg(run.process.pid, number)
        assert run.wait() == 0
    assert run.stopped_cleanly()
    assert "after the job" in run.log
    assert not NOISE.search(run.log), run.log


@pytest.mark.slow
def test_a_script_that_never_looks_at_its_job_ends_after_the_last_commit(folder: Path) -> None:
    with running(folder, "signals.py", "sleeps") as run:
        os.killpg(run.process.pid, signal.SIGTERM)
        assert run.wait() == 128 + signal.SIGTERM
    assert run.stopped_cleanly()
    assert not NOISE.search(run.log), run.log


@pytest.mark.slow
def test_a_script_that_a_shell_started_in_the_background_stops_cleanly(folder: Path) -> None:
    """Such a shell ignores SIGINT in it; SIGTERM counts all the same."""
    background = f"'{sys.executable}' signals.py awaits & trap 'kill -TERM $!' TERM; wait; wait $!"
    with running(folder, "-c", f"import os; os.execv('/bin/sh', ['sh', '-c', {background!r}])") as run:
        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == 0
    assert run.stopped_cleanly()
    assert "after the job" in run.log


@pytest.mark.parametrize(("words", "status"), [((), 0), pytest.param(("fails",), 1, id="with an error")])
@pytest.mark.slow
def test_a_script_that_ends_early_waits_for_the_last_commit(folder: Path, words: Sequence[str], status: int) -> None:
    with running(folder, "signals.py", "ends", *words) as run:
        (folder / "end").touch()
        assert run.wait() == status
    assert run.stopped_cleanly()
    said, _, warning = run.log.rpartition("the program ends while job signals-1 runs")
    assert NOISE.findall(said) == (["Traceback", "Error"] if words else [])
    assert ("the last words of the script" in said) == bool(words)
    assert warning.count("\n") == 1


@pytest.mark.slow
def test_ctrl_c_at_the_end_of_a_script_stops_its_job_at_once(folder: Path) -> None:
    with running(folder, "signals.py", "ends") as run:
        (folder / "blocks").touch()
        (folder / "end").touch()
        run.await_log("the program ends")
        os.killpg(run.process.pid, signal.SIGINT)
        assert run.wait() == 0
    assert run.last.ended is None, "there was no last commit"
    assert not NOISE.search(run.log), run.log


@pytest.mark.slow
def test_a_script_may_end_before_its_job_is_ready(folder: Path) -> None:
    """It waits for the start, and then stops."""
    (folder / "end").touch()
    run = Run(folder, ["signals.py", "ends"])
    try:
        assert run.wait() == 0, run.log
    finally:
        run.process.kill()
    assert run.last.ended == "stopped", run.log


JVM = """
import threading
from penstock.spark.session import gateway

gateway.start_jvm({})
print(gateway._CurrentGateway.jvm.process.pid, flush=True)
threading.Event().wait()
"""


@pytest.mark.slow
def test_a_jvm_that_stood_still_when_its_driver_was_killed_ends_with_the_next_start() -> None:
    """A JVM that is stopped does not see the end of its input."""

    def started(stack: ExitStack) -> tuple[subprocess.Popen[str], psutil.Process]:
        driver = subprocess.Popen([sys.executable, "-c", JVM], stdout=subprocess.PIPE, text=True)
        stack.callback(driver.wait)
        stack.callback(driver.kill)
        assert driver.stdout is not None
        jvm = psutil.Process(int(driver.stdout.readline()))
        stack.callback(end, jvm)
        return driver, jvm

    def end(jvm: psutil.Process) -> None:
        with suppress(psutil.NoSuchProcess):
            jvm.kill()

    with ExitStack() as stack:
        driver, jvm = started(stack)
        jvm.suspend()
        driver.kill()
        driver.wait()
        assert jvm.status() == psutil.STATUS_STOPPED
        _, second = started(stack)
        wait_until(lambda: has_ended(jvm.pid), "the end of the JVM")
        assert not has_ended(second.pid)
