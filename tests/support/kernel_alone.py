"""A job of three operators on the kernel alone: run as a program, in which nothing else of Penstock can be imported.

What it may import is the plan of the rooms in `.importlinter`, with the systems `local` and `memory` and the job in one
process. Its arguments are a folder and the number of messages to put; it prints all outputs as JSON.
"""

from __future__ import annotations

import configparser
import json
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MORE = ("penstock.outbox.unpublished", "penstock.testing.in_process", "penstock.testing.runner.tasks")
"""The host, which is the tests'."""


def kernel() -> list[str]:
    """The packages of the rooms of the kernel."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    rooms = dict(line.split(":") for line in parser["importlinter:contract:rooms"]["rooms"].strip().splitlines())
    return [package for room in ("base", "api", "kernel") for package in rooms[room].split()]


def others() -> list[str]:
    """The packages of all other rooms."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    rooms = dict(line.split(":") for line in parser["importlinter:contract:rooms"]["rooms"].strip().splitlines())
    return [package for room, own in rooms.items() if room not in ("base", "api", "kernel") for package in own.split()]


class KernelAlone(MetaPathFinder):
    """Refuses to import what is not of the kernel."""

    def __init__(self) -> None:
        self._kernel, self._others = kernel(), others()

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        if self._is_other(fullname):
            raise ModuleNotFoundError(f"{fullname} is not of the kernel", name=fullname)
        return None

    def _is_other(self, name: str) -> bool:
        if name in MORE or any(each.startswith(f"{name}.") for each in MORE):
            return False
        room = max((each for each in (*self._kernel, *self._others) if _in(name, each)), key=len, default="")
        return room in self._others


def _in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def main(folder: Path, count: int) -> None:
    from penstock import plugins

    plugins.WINGS.clear()

    import penstock as ps
    from penstock.config.load import load_config
    from penstock.objects.open import open_store
    from penstock.system.contract.messages import OffsetRange
    from penstock.system.local import LocalSystem
    from penstock.system.memory import MemorySystem
    from penstock.testing.in_process import InProcessDriver

    class Total(ps.StreamTask):
        def init(self, context: Any) -> None:
            self.totals = context.store("totals")

        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            total = (self.totals.get(envelope.key) or 0) + envelope.value["n"]
            self.totals.put(envelope.key, total)
            collector.emit(key=envelope.key, value=total)

    app = ps.StreamApplication("kernel")
    app.store("totals", key=ps.String(), value=ps.Integer())
    doubled = app.input("local.in").map(lambda value: {**value, "n": 2 * value["n"]})
    by_name = doubled.partition_by(lambda value: value["name"])
    by_name.process(Total, stores=["totals"]).send_to(app.output("local.out", key=ps.String(), value=ps.Integer()))

    local = LocalSystem("local", folder / "streams")
    admin = local.admin()
    for stream in ("in", "out"):
        admin.create_stream(stream, 2)
    for n in range(count):
        value = json.dumps({"name": f"k{n % 3}", "n": n}).encode()
        local.writer(None).append(ps.SystemStreamPartition("local", "in", n % 2), [(n, None, value)])
    keys = {"job.name": "kernel", "job.root": f"file://{folder}/root", "job.logged.store.base.dir": f"{folder}/stores"}
    config = load_config(overrides={**keys, "task.commit.ms": 0}, environ={})
    with_root = open_store(config.job.root)
    systems = {"local": local, "memory": MemorySystem("memory")}
    driver = InProcessDriver(app.graph(), config, with_root, systems, until_latest=True)
    driver.loop.run()
    driver.close()
    found = []
    for partition, ends in sorted(admin.offsets("out").items()):
        ssp = ps.SystemStreamPartition("local", "out", partition)
        for chunk in local.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 1000):
            found += [[ps.String().from_bytes(key), ps.Integer().from_bytes(value)] for _, _, key, value, *_ in chunk]
    loaded = sorted(name for name in sys.modules if name.startswith("penstock."))
    print(json.dumps({"output": found, "modules": loaded}))


if __name__ == "__main__":
    sys.meta_path.insert(0, KernelAlone())
    main(Path(sys.argv[1]), int(sys.argv[2]))
