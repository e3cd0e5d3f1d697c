"""The direct worker: `python -m penstock.direct <descriptor of its socket> <driver's pid> <descriptor of its page>`.

It runs one batch after the other, as its driver says, and never outlives the driver. It is killed, not told to stop:
after a failure, or once nobody wants the result of a run any more.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from multiprocessing.connection import Connection

from penstock.base.files import go_private
from penstock.direct.stages import DeclinedError, DirectStages
from penstock.direct.worker import Answer, RunBreak, RunOrder, RunReports, SignOfLife, WorkerReady
from penstock.host.log_lines import print_lossily
from penstock.host.position_page import PositionPage, use_page
from penstock.host.posix import watch_process
from penstock.host.process import ignore_signals, keep_pandas_out, settle
from penstock.wire.ports import PackedPackage

SIGN_SECONDS = 0.5


class _Driver:
    """The connection to the driver, whose end ends this process. Answers may come from two threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, answer: Answer) -> None:
        with self._lock:
            try:
                self._connection.send(answer)
            except OSError:
                os._exit(0)

    def order(self) -> RunOrder:
        """The next order, once it comes."""
        try:
            order: RunOrder = self._connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        return order

    def give_signs(self, stages: DirectStages, running: threading.Event) -> None:
        """Show that this process is alive while a batch runs."""
        while running.wait():
            threading.Event().wait(SIGN_SECONDS)
            if running.is_set():
                self.send(SignOfLife(stages.progress(), stages.writes))


def main() -> None:
    go_private()
    keep_pandas_out()
    watch_process(int(sys.argv[2]), lambda: os._exit(0))
    ignore_signals()
    faulthandler.enable()
    print_lossily()
    for descriptor in (int(sys.argv[1]), int(sys.argv[3])):
        os.set_inheritable(descriptor, False)  # what the application starts must not keep it open
    use_page(PositionPage(int(sys.argv[3])))
    connection = Connection(int(sys.argv[1]))
    driver = _Driver(connection)
    try:
        stages = DirectStages(PackedPackage("", connection.recv_bytes()).load())
        settle()
        running = threading.Event()
        threading.Thread(target=driver.give_signs, args=(stages, running), name="signs", daemon=True).start()
        driver.send(WorkerReady())
        while True:
            order = driver.order()
            running.set()
            answer = _run(stages, order)
            running.clear()
            driver.send(answer)
    except BaseException as error:
        driver.send(RunBreak(str(error) or repr(error)))
        threading.Event().wait()  # for the end: the driver kills it


def _run(stages: DirectStages, order: RunOrder) -> Answer:
    try:
        return RunReports(stages.run(order))
    except DeclinedError as error:
        return RunBreak(str(error), declined=True)


if __name__ == "__main__":
    main()
