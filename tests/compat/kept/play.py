"""Writes, shows or continues a kept job, by the Penstock that is on the path.

`python -m tests.compat.kept.play write|show|finish JOB FOLDER`. Other versions are asked to do this in a process of
their own, with their tests, so these three commands stay as they are.
"""

from __future__ import annotations

import hashlib
import json
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.compat.kept.job import HOUR_MS, KeptHome, KeptJob
from tests.compat.kept.outside import OutsideJob
from tests.compat.kept.samza import SamzaJob
from tests.compat.kept.stores import StoresJob
from tests.compat.kept.windows import WindowsJob
from tests.support.tools.cli import call, call_json

JOBS: Mapping[str, Callable[[], KeptJob]] = {each.name: each for each in (StoresJob, WindowsJob, OutsideJob, SamzaJob)}
BEGAN_MS = 1_800_000_000_000
"""When a kept job was begun, by its clock."""
GOES_ON_MS = BEGAN_MS + 2 * HOUR_MS


def write(home: KeptHome) -> None:
    home.write(BEGAN_MS)


def finish(home: KeptHome) -> None:
    """Continue a job that was unpacked or copied here, and compare what comes of it with a plain computation over all
    of the input."""
    home.move_in()
    home.finish(GOES_ON_MS)
    published, committed, unread, further = home.job.parts()
    before, rest = [*published, *committed], [*unread, *further]
    for stream, expected in home.job.results(before, rest).items():
        assert_equal(f"the output `{stream}`", counted(home.values(stream)), counted(expected))
    check_state(home, home.job.state(before, rest))
    assert_verified(home)


def shown(home: KeptHome) -> dict[str, Any]:
    """Facts that commands show of a job that was stopped in the middle. They have to be the same in each version."""
    command = home.arguments
    status = call_json("status", *command)
    listed = call_json("checkpoint", "list", *command)
    last = call_json("checkpoint", "show", *command)
    verified = call_json("state", "verify", *command)
    return {
        "run": [status["runId"], status["epoch"]],
        "checkpoints": [[each["id"], each["kind"], each["ended"], each["batch"]] for each in listed],
        "last": [last["id"], last["taskCount"], last["stores"]],
        "inputs": {
            each["stream"]: [[own["nextOffset"], own["upcoming"]] for own in each["partitions"]]
            for each in status["inputs"]
        },
        "intermediate": {each["stream"]: each["unread"] for each in status["intermediate"]},
        "outbox": (status["outbox"] or {}).get("outputs"),
        "startpoints": len(status["startpoints"]),
        "deadLetters": status["deadLetters"],
        "drains": len(status["drain"]["requests"]),
        "tables": sorted(each["table"] for each in status["tables"]),
        "digests": {
            store["store"]: {own["backend"]: own["digest"]["sha256"] for own in store["backends"]}
            for store in verified["stores"]
        },
        "tails": {stream: tail_of(home, stream) for stream in home.job.streams},
    }


def tail_of(home: KeptHome, stream: str) -> list[Any]:
    """The number of messages that a command shows of a stream, and a digest of them."""
    lines = sorted(call("stream", "tail", stream, "--from-beginning", "--json", *home.of_streams)[0].splitlines())
    return [len(lines), hashlib.sha256("\n".join(lines).encode()).hexdigest()]


def check_state(home: KeptHome, expected: Mapping[str, Mapping[Any, Any]]) -> None:
    """The stores, as a command shows them, are these."""
    for store, entries in expected.items():
        lines = call("state", "scan", home.arguments[0], store, "--json", *home.arguments[1:])[0].splitlines()
        found = {json.dumps(each["key"]): each["value"] for each in map(json.loads, lines)}
        assert_equal(f"store `{store}`", found, {json.dumps(key): value for key, value in entries.items()})


def assert_verified(home: KeptHome) -> None:
    """All backends of a store have the same."""
    for store in call_json("state", "verify", *home.arguments)["stores"]:
        digests = [own["digest"] for own in store["backends"]]
        assert digests, store
        assert digests == digests[:1] * len(digests), store


def counted(values: Any) -> Counter[str]:
    return Counter(json.dumps(value, sort_keys=True) for value in values)


def assert_equal(what: str, found: Any, expected: Any) -> None:
    if isinstance(found, Counter):
        assert found == expected, f"{what}: missing {expected - found}, too many {found - expected}"
    assert found == expected, f"{what}: {found}, expected {expected}"


def main(do: str, name: str, folder: str) -> None:
    socket.gethostname = lambda: "kept.example"  # no other host can see the process
    with closing(KeptHome(Path(folder), JOBS[name]())) as home:
        if do == "show":
            print(json.dumps(shown(home), indent=1, sort_keys=True))
        else:
            {"write": write, "finish": finish}[do](home)


if __name__ == "__main__":
    main(*sys.argv[1:])
