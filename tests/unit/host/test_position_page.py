"""The page of positions: what it says after its process has ended, however it ended."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.host import position_page
from penstock.host.logs import page_path, prune
from penstock.host.position_page import (
    TIMER,
    MessageId,
    PositionPage,
    Span,
    pages_of_ended,
    read_page,
    spots_in,
    worker_page,
)

STREAMS = ("kafka.orders", "kafka.payments")
MESSAGE = MessageId(2, 5, 7, (1 << 32) | 3, 4711, -9)
WRITER = """
import ctypes, os, signal, sys
from pathlib import Path
from penstock.host.position_page import MessageId, PositionPage, Span, use_page, void_page
page = PositionPage.create(Path(sys.argv[1]))
use_page(page)
def slot(stage, task):
    found = page.slot(stage, task, ("kafka.orders", "kafka.payments"))
    found.begin(12, 2)
    return found
slot(0, 1).enter_piece(Span(7, 7, 10, 20))
slot(0, 1).leave()
"""
ENDS = {
    "exit": "os._exit(3)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "segfault": "ctypes.string_at(0)",
    "abort": "os.abort()",
}


def write(path: Path, code: str) -> int:
    command = [sys.executable, "-c", WRITER + code, str(path)]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL, timeout=60).returncode


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_what_was_done_is_there_after_any_end(tmp_path: Path, end: str) -> None:
    path = tmp_path / "a.page"
    entered = "slot(2, 5).enter_message(MessageId(2, 5, 7, (1 << 32) | 3, 4711, -9))"
    assert write(path, f"{entered}\n{end}") != 0
    (spot,) = read_page(path)
    assert (spot.doing, spot.batch, spot.run, spot.stage, spot.task) == ("message", 12, 2, 2, 5)
    assert spot.message == MESSAGE
    assert str(spot) == "offset 4711 of stream `kafka.payments` partition 3 in task 5, stage 2"


def test_an_end_between_messages_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.page"
    assert write(path, ENDS["killed"]) == -9
    assert read_page(path) == ()


def test_an_end_that_is_no_doing_of_a_message_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.page"
    write(path, "slot(0, 1).enter_piece(Span(7, 7, 10, 20)); void_page(); os._exit(70)")
    assert read_page(path) == ()


def test_spots_in_words(tmp_path: Path) -> None:
    page = PositionPage.create(tmp_path / "a.page")
    assert page is not None
    page.slot(1, 0, STREAMS).enter_piece(Span(3, 3, 10, 20))
    page.slot(1, 1, STREAMS).enter_piece(Span(3, 3, 10, 10))
    page.slot(1, 2, STREAMS).enter_piece(Span(3, 4, 10, 20))
    page.slot(1, 3, STREAMS).enter_step("timers")
    page.slot(1, 4, STREAMS).enter_message(MessageId(1, 4, TIMER, -1 << 32, -2, 5), "timer `due` of operator `w`" * 9)
    words = [str(spot) for spot in read_page(tmp_path / "a.page")]
    assert words[:4] == [
        "one of the offsets 10 to 20 of stream `kafka.orders` partition 3 in task 0, stage 1",
        "offset 10 of stream `kafka.orders` partition 3 in task 1, stage 1",
        "one of the messages with the offsets 10 to 20 of several partitions in task 2, stage 1",
        "timers in task 3, stage 1",
    ]
    assert words[4].startswith("timer `due` of operator `w`timer `due`")


def test_streams_with_names_that_do_not_fit_are_numbered(tmp_path: Path) -> None:
    page = PositionPage.create(tmp_path / "a.page")
    assert page is not None
    page.slot(1, 0, ("m." + "s" * 5000,)).enter_piece(Span(3, 3, 1, 2))
    assert "of stream `input 0` partition 3" in str(read_page(tmp_path / "a.page")[0])


def test_a_slot_that_was_being_written_says_nothing(tmp_path: Path) -> None:
    page = PositionPage.create(tmp_path / "a.page")
    assert page is not None
    page.slot(1, 0, STREAMS).enter_message(MESSAGE)
    data = (tmp_path / "a.page").read_bytes()
    assert len(spots_in(data)) == 1
    assert [spots_in(data[:size]) for size in range(4096, len(data) - 1)] == [()] * (len(data) - 1 - 4096)
    for at in range(4097, len(data)):
        assert spots_in(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) == ()


def test_a_full_disk_disturbs_nobody(tmp_path: Path) -> None:
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, {resource.RLIM_INFINITY}))
slot(3, 3).enter_message(MessageId(3, 3, 7, 1, 2, 3))
os._exit(7)
"""
    assert write(tmp_path / "a.page", code) == 7
    assert PositionPage.create(tmp_path / "missing" / "a.page") is None


def test_pages_of_containers_go_with_their_logs(tmp_path: Path) -> None:
    for number in range(5):
        log = tmp_path / f"container-{number}.log"
        for path in (log, page_path(log)):
            path.touch()
            os.utime(path, (number, number))
    prune(tmp_path, keep=2)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"container-{number}.{end}" for number in (3, 4) for end in ("log", "page")
    }


def test_pages_of_workers_are_read_once_they_end_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position_page, "KEPT_PAGES", 2)
    folder = tmp_path / "logs"
    own = worker_page(folder)
    assert own is not None
    own.slot(0, 0, STREAMS).enter_message(MESSAGE)
    assert pages_of_ended(folder) == (), "its process lives"
    for number in range(4):
        write(folder / f"worker-{number}-a.page", "slot(0, 3).enter_piece(Span(7, 7, 1, 2)); os._exit(1)")
    assert [spot.task for spot in pages_of_ended(folder)] == [3] * 4
    assert worker_page(folder) is not None
    assert len(pages_of_ended(folder)) == 2
