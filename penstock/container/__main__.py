"""The container process: `python -m penstock.container <name> <incarnation> <executor pid>`, its spec on its input.

It writes one line with its address to standard output, then everything goes to its log file. It never outlives the
executor it was started by, and ends soon after the last driver that listened to it has left.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import shutil
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

import orjson

from penstock.base.documents import decode
from penstock.base.files import go_private
from penstock.container.container import Container
from penstock.container.launch import Register
from penstock.container.server import ContainerPort, ContainerServer
from penstock.host import process
from penstock.host.logs import log_path, log_to, page_path, setup_logging
from penstock.host.position_page import PositionPage, use_page, void_page
from penstock.host.posix import machine_id, wake_left, watch_process
from penstock.state.restore import tasks_with_copies
from penstock.wire.containers import ContainerAddress, ContainerSpec
from penstock.wire.security import TokenCheck

_LAST_REPLIES_SECONDS = 0.3
_LOOK_SECONDS = 1.0
_ALONE_SECONDS = 15.0
"""A driver that renews its connection is away for less than a second; one that stood still is still connected."""


def main() -> None:
    go_private()
    process.keep_pandas_out()
    name, incarnation, parent = sys.argv[1], sys.argv[2], int(sys.argv[3])
    spec = decode(ContainerSpec, sys.stdin.buffer.read(), "what this container was started with")
    folder = process.make_socket_folder()
    log = log_path(spec.log_directory, name, incarnation)
    watch_process(parent, lambda: _follow(parent, folder))
    process.ignore_signals()
    process.allow_files()
    container = Container(name, incarnation)
    use_page(PositionPage.create(page_path(log)))
    check = TokenCheck(spec.secret, incarnation)
    socket_uri = f"grpc+unix://{folder}/s"
    port = ContainerPort(spec, container, check, folder)
    container.renew_port = port.renew
    admit = None if port.gate is None else port.gate.admit
    servers: list[ContainerServer | ContainerPort] = [ContainerServer(socket_uri, container, check, admit), port]
    stream = _tell(_address(spec, container, parent, socket_uri, port, log), log)
    faulthandler.enable()
    container.passed_on = setup_logging(stream, spec.log_format, spec.job)
    logging.info("container %s, incarnation %s, of executor %d", name, incarnation, parent)
    process.settle()
    process.remove_dead_folders()
    wake_left()
    _wait_for_end(container)
    with suppress(OSError):
        Register.of(spec.run_id, parent).remove()
    _end(servers, folder)


def _address(
    spec: ContainerSpec, container: Container, parent: int, socket_uri: str, port: ContainerPort, log: Path
) -> ContainerAddress:
    return ContainerAddress(
        container.container,
        container.incarnation,
        machine_id(),
        os.getpid(),
        parent,
        socket_uri,
        port.uri,
        str(log),
        () if spec.copies_directory is None else tasks_with_copies(Path(spec.copies_directory)),
        spec.executor_id,
        port.certificate,
        spec.callers,
    )


def _end(servers: Iterable[ContainerServer | ContainerPort], folder: Path) -> None:
    # A shutdown waits for every call, also for one that hangs: give the last replies a moment, then go.
    for server in servers:
        threading.Thread(target=server.shutdown, daemon=True).start()
    threading.Event().wait(_LAST_REPLIES_SECONDS)
    _vanish(folder)


def _tell(address: ContainerAddress, log: Path) -> TextIO:
    """Tell the executor the address, on the standard output that it reads. From now on that is the log, which is
    returned."""
    output = os.dup(1)
    stream = log_to(log)
    os.write(output, orjson.dumps(asdict(address)) + b"\n")
    os.close(output)
    return stream


def _wait_for_end(container: Container) -> None:
    """Return when the container is closed, or no driver has listened to it for long."""
    while not container.closed.wait(_LOOK_SECONDS):
        if container.audience.absent_s > _ALONE_SECONDS:
            logging.critical("no driver has listened to this container for %.0f s: it ends", _ALONE_SECONDS)
            wake_left()  # its executor may stand still, which otherwise ends before this container notices anything
            break


def _follow(parent: int, folder: Path) -> None:
    with suppress(OSError):  # past Python's locks, which somebody may hold
        os.write(2, b"its executor, process %d, has ended, and so does this container\n" % parent)
    _vanish(folder)


def _vanish(folder: Path) -> None:
    void_page()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
