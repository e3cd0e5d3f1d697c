"""A job of three operators on the kernel alone: run as a program, in which nothing else of Penstock can be imported.

What it may import is the plan of the rooms in `.importlinter`, with the systems `local` and `memory` and the job in one
process. Its arguments are a folder, and the number of the first message to put and of all; it prints JSON.
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
HOST = ("penstock.testing.in_process", "penstock.testing.in_process_ports")


def rooms() -> dict[str, list[str]]:
    """Room → its packages."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    lines = parser["importlinter:contract:rooms"]["rooms"].strip().splitlines()
    return {room: packages.split() for room, packages in (line.split(":") for line in lines)}


class KernelAlone(MetaPathFinder):
    """Refuses to import what is not of the kernel, nor of what the kernel knows, nor the host."""

    def __init__(self) -> None:
        self._room_of = {package: room for room, packages in rooms().items() for package in packages}

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        if self.room(fullname) not in ("base", "api", "kernel", "") and not any(_in(host, fullname) for host in HOST):
            raise ModuleNotFoundError(f"{fullname} is not of the kernel", name=fullname)
        return None

    def room(self, module: str) -> str:
        """The room of a module; empty if it is in none."""
        packages = [package for package in self._room_of if _in(module, package)]
        return self._room_of[max(packages, key=len)] if packages else ""


def _in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def main(folder: Path, first: int, count: int) -> None:
    """Put messages from this number on, run the job to the end of its input, and print what there is."""
    from penstock.base import plugins

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

    local = LocalSystem("local", str(folder / "streams"))
    admin = local.admin()
    for stream in ("in", "out"):
        admin.create_stream(stream, 2)
    for n in range(first, first + count):
        value = json.dumps({"name": f"k{n % 3}", "n": n}).encode()
        local.writer(None).append(ps.SystemStreamPartition("local", "in", n % 2), [(n, None, value)])
    keys = {"job.name": "kernel", "job.root": f"file://{folder}/root", "job.logged.store.base.dir": f"{folder}/stores"}
    config = load_config(overrides={**keys, "task.commit.ms": 0}, environ={})
    systems = {"local": local, "memory": MemorySystem("memory")}
    driver = InProcessDriver(app.graph(), config, open_store(config.job.root), systems, until_latest=True)
    driver.loop.run()
    driver.close()
    found = []
    for partition, ends in sorted(admin.offsets("out").items()):
        ssp = ps.SystemStreamPartition("local", "out", partition)
        for chunk in local.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 1000):
            rows = [(key or b"", value or b"") for _, _, key, value, *_ in chunk]
            found += [[ps.String().from_bytes(key), ps.Integer().from_bytes(value)] for key, value in rows]
    loaded = sorted(name for name in sys.modules if name.startswith("penstock."))
    print(json.dumps({"output": found, "modules": loaded}))


if __name__ == "__main__":
    sys.meta_path.insert(0, KernelAlone())
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
