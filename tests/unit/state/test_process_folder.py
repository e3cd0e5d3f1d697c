"""Folders that go with their process, and what ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.host.process import process_folder
from tests.support.jobs.home import wait_until
from tests.support.tools.places import ROOT

PROGRAM = """
import signal, time
from penstock.host.process import process_folder

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell runs in the background ignores it
with process_folder("penstock-test-") as folder:
    (folder / "store").mkdir()
    (folder / "store" / "file").write_text("content")
    print(folder, flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_folder_goes_with_its_process(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            assert process.stdout is not None
            folder = Path(process.stdout.readline().strip())
            assert folder.parent == tmp_path
            assert (folder / "store" / "file").read_text() == "content"
            os.killpg(process.pid, number)
            wait_until(lambda: not folder.exists(), "the end of the folder")
        finally:
            process.kill()


def test_a_folder_goes_at_the_end_of_its_block() -> None:
    with process_folder("penstock-test- it's $HOME-") as folder:
        (folder / "file").write_text("content")
    assert not folder.exists()
    assert folder.parent.exists()
