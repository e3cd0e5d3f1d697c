"""The progress of a run, which several threads tell."""

from __future__ import annotations

import threading
import time

from penstock.driver.show.progress import ProgressBoard


def test_what_one_wing_tells_is_not_lost_while_another_one_tells() -> None:
    board = ProgressBoard()
    other = threading.Thread(target=board.tell, args=("tables", "loads"))
    with board.changed:
        other.start()
        time.sleep(0.05)  # it waits for the board now
        board.tell("outbox", "publishes")
    other.join()
    assert board.wings == {"tables": "loads", "outbox": "publishes"}


def test_a_phase_ends_with_the_one_before() -> None:
    board = ProgressBoard(phase="restoring")
    with board.during("bootstrapping", "side"):
        assert (board.phase, board.phase_of) == ("bootstrapping", "side")
    assert (board.phase, board.phase_of) == ("restoring", "")
