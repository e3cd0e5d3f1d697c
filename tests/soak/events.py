"""The events of a soak. Each of them leaves a driver that runs, and says what it did."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Sequence

import psutil
from confluent_kafka.admin import AdminClient

from penstock.batch.watermarks import TIME
from tests.soak.driver import Driver, send
from tests.soak.job import INPUT, NAME, PARTITIONS
from tests.soak.oracle import Line
from tests.soak.soak import Soak
from tests.soak.waits import BrokenError, wait_for
from tests.soak.world import positions_of
from tests.support.streams.kafka import QUIET, TIMEOUT_S

Victims = Callable[[Driver], Sequence[psutil.Process]]
BACKENDS = ("changelog-files", "blob", "changelog-stream")
_LATENCY_MS = 40


def kill_driver(soak: Soak) -> str:
    soak.kill_driver("killed")
    soak.start()
    return "the driver was killed"


def _victim(soak: Soak, victims: Victims, what: str) -> psutil.Process:
    found: list[psutil.Process] = []

    def there() -> bool:
        soak.alive()
        found[:] = victims(soak.driver)
        return bool(found)

    wait_for(there, what)
    return soak.chance.choice(sorted(found, key=lambda process: process.pid))


def kill_container(soak: Soak) -> str:
    victim = _victim(soak, Driver.containers, "a container")
    send(signal.SIGKILL, [victim])
    soak.progress("a kill of a container")
    return f"container {victim.pid} was killed"


def kill_worker(soak: Soak) -> str:
    """One of Spark, or of the direct way."""
    victim = _victim(soak, lambda driver: [*driver.workers(), *driver.direct()], "a worker")
    send(signal.SIGKILL, [victim])
    soak.progress("a kill of a worker")
    return f"worker {victim.pid} was killed"


def kill_broker(soak: Soak) -> str:
    """The job goes on with the other two, and the broker comes back."""
    number = soak.chance.randrange(3)
    broker = soak.world.cluster.brokers[number]
    broker.kill()
    soak.progress("a kill of a broker")
    broker.start()
    _await_replicas(soak)
    soak.world.cluster.elect()
    return f"broker {number + 1} was killed, and started again"


def _await_replicas(soak: Soak) -> None:
    """Wait until each partition has all its replicas: another broker may be killed then."""
    admin = AdminClient(soak.world.cluster.client_options(), logger=QUIET)

    def complete() -> bool:
        topics = admin.list_topics(timeout=TIMEOUT_S).topics.values()
        return all(len(p.isrs) == len(p.replicas) for topic in topics for p in topic.partitions.values())

    wait_for(complete, "all replicas")


def freeze_container(soak: Soak) -> str:
    """Too short to be lost."""
    victim = _victim(soak, Driver.containers, "a container")
    return _freeze(soak, victim, soak.chance.uniform(0.5, 4.0), "container")


def freeze_driver(soak: Soak) -> str:
    """Too short for the lease."""
    return _freeze(soak, psutil.Process(soak.driver.process.pid), soak.chance.uniform(0.5, 3.0), "driver")


def _freeze(soak: Soak, victim: psutil.Process, seconds: float, what: str) -> str:
    send(signal.SIGSTOP, [victim])
    threading.Event().wait(seconds)
    send(signal.SIGCONT, [victim])
    soak.progress(f"a stop of the {what}")
    return f"{what} {victim.pid} stood still for {seconds:.1f} s"


def lose_container(soak: Soak) -> str:
    """It stands still until the driver gives it up; then it has to end."""
    victim = _victim(soak, Driver.containers, "a container")
    before = soak.epoch()
    send(signal.SIGSTOP, [victim])
    soak.await_epoch(before)
    send(signal.SIGCONT, [victim])
    soak.leave(victim, "a container that was lost")
    soak.progress("the loss of a container")
    return f"container {victim.pid} stood still until it was lost"


def stopped_and_left(soak: Soak) -> str:
    """Some processes stand still when the driver is killed, and nobody continues them."""
    kinds: dict[str, Victims] = {
        "a container": Driver.containers,
        "the JVM": Driver.jvms,
        "workers": lambda driver: [*driver.workers(), *driver.direct()],
        "everything": Driver.processes,
    }
    kind = soak.chance.choice(sorted(kinds))
    first = _victim(soak, kinds[kind], kind)
    stopped = [first] if kind == "a container" else list(kinds[kind](soak.driver))
    send(signal.SIGSTOP, stopped)
    soak.kill_driver(f"killed while {kind} stood still")
    soak.start()
    return f"the driver was killed while {kind} stood still ({len(stopped)} processes)"


def rival_refused(soak: Soak) -> str:
    """A second driver, while the first one works."""
    rival = soak.world.start()
    status = rival.ended("a second driver")
    if status == 0 or "is run by" not in " ".join(rival.log.split()):
        raise BrokenError(f"a second driver was not refused: {status}\n{rival.log[-2000:]}")
    soak.died(rival, "refused")
    soak.progress("a second driver")
    return f"a second driver was refused with {status}"


def rival_takes_over(soak: Soak) -> str:
    """The driver stands still until another one has its job; then it wakes, or is killed as it stands."""
    first, before = soak.driver, soak.epoch()
    send(signal.SIGSTOP, [psutil.Process(first.process.pid)])
    soak.driver = soak.world.start()
    soak.await_epoch(before)
    wakes = soak.chance.random() < 0.7
    if wakes:
        send(signal.SIGCONT, [psutil.Process(first.process.pid)])
        if first.ended("a driver whose job another one has") == 0:
            raise BrokenError("a driver whose job another one has ended with 0")
    else:
        first.kill()
    soak.died(first, "replaced")
    soak.progress("a change of drivers")
    return f"another driver took over, and the first one {'woke' if wakes else 'was killed as it stood'}"


def look(soak: Soak) -> str:
    """Commands that only read, beside the job."""
    words = [
        ("status", NAME), ("checkpoint", "list", NAME), ("checkpoint", "show", NAME), ("state", "list", NAME),
        ("state", "gc", NAME, "--dry-run"), ("startpoint", "list", NAME), ("job", "audit", NAME),
    ]  # fmt: skip
    chosen = soak.chance.sample(words, 3)
    for each in chosen:
        json.loads(soak.world.command(*each, "--json"))
    return f"commands: {', '.join(' '.join(each[:2]) for each in chosen)}"


def stop(soak: Soak) -> str:
    soak.stop()
    soak.start()
    return "the job was stopped and started"


def set_checkpoint(soak: Soak) -> str:
    """Skip some messages of one partition by hand."""
    left = soak.stop()
    positions = positions_of(left)
    partition = soak.chance.randrange(PARTITIONS)
    end = soak.world.input.ends[partition]
    to = {partition: max(positions[partition], end - soak.chance.randrange(20))}
    soak.world.command(
        "checkpoint", "set", NAME, "--offsets", "-", "--yes", stdin=json.dumps({f"kafka.{INPUT}": to})
    )  # fmt: skip
    written = soak.world.log().latest
    if written is None or positions_of(written) != {**positions, **to}:
        raise BrokenError(f"`checkpoint set` of {to} wrote {written and positions_of(written)} behind {positions}")
    soak.skip(to, written)
    soak.start()
    return f"partition {partition} went on at {to[partition]} in place of {positions[partition]}"


def drain(soak: Soak) -> str:
    soak.world.command("drain", NAME, "--wait")
    last = soak.stopped("a drain")
    if last.ended != "drained":
        raise BrokenError(f"the last checkpoint of a drain says `{last.ended}`")
    soak.drained(last)
    soak.start()
    return "the job was drained and started"


def go_back(soak: Soak) -> str:
    """A startpoint some messages before, with the state of a checkpoint that is near."""
    latest = soak.rest()
    partition = soak.chance.randrange(PARTITIONS)
    retained = soak.world.log().restorable  # the stop adds a checkpoint, so the oldest ones may go
    oldest = positions_of(retained[min(3, len(retained) - 1)])[partition]
    offset = max(oldest, positions_of(latest)[partition] - soak.chance.randrange(1, 40))
    soak.world.command(
        "startpoint", "set", NAME, "--stream", f"kafka.{INPUT}", "--partition", str(partition),
        "--offset", str(offset), "--clamp", "--with-state", "nearest", "--accept-state",
    )  # fmt: skip
    left = soak.stop()
    first = soak.start()
    if first.parent is None or positions_of(first)[partition] > offset:
        raise BrokenError(f"a startpoint at {offset} of partition {partition} began at {positions_of(first)}")
    origin, watermark = first.parent, first.section(TIME).watermarks.get("seconds")
    soak.move(soak.line_of(origin).back(origin, positions_of(first), watermark), left, first.batch)
    soak.load("run")
    return f"a startpoint at {offset} of partition {partition}, with checkpoint {origin}"


def begin_again(soak: Soak) -> str:
    """A startpoint with empty stores, in all partitions."""
    soak.rest()
    soak.world.command(
        "startpoint", "set", NAME, "--stream", f"kafka.{INPUT}", "--all-partitions", "--timestamp", "20s ago",
        "--with-state", "clear",
    )  # fmt: skip
    left = soak.stop()
    first = soak.start()
    line = Line(soak.world.input)
    soak.move(line, left, first.batch)
    soak.skip(positions_of(first), left)
    soak.load("run")
    return f"a startpoint twenty seconds before, with empty stores: {positions_of(first)}"


def collect(soak: Soak) -> str:
    """Objects of runs that were killed."""
    soak.stop()
    soak.world.command("state", "gc", NAME)
    left = json.loads(soak.world.command("state", "gc", NAME, "--dry-run", "--json"))
    names = [*left["tables"], *left["outbox"], *(name for each in left["backends"].values() for name in each["names"])]
    if names:
        raise BrokenError(f"`state gc` left {names}")
    soak.start()
    return "objects were collected"


def other_slots(soak: Soak) -> str:
    """Another number of containers."""
    slots = soak.chance.choice([n for n in (1, 2, 3) if n != soak.world.settings.slots])
    soak.stop()
    soak.start(slots=slots)
    return f"the job went on with {slots} containers"


def other_way(soak: Soak) -> str:
    """The direct way on or off."""
    soak.stop()
    soak.start(latency_ms=0 if soak.world.settings.latency_ms else _LATENCY_MS)
    return f"the direct way went {'on' if soak.world.settings.latency_ms else 'off'}"


def migrate(soak: Soak) -> str:
    """The next step of a move to the next backend, as the documentation has them."""
    settings, world = soak.world.settings, soak.world
    if len(settings.backups) == 1:
        new = BACKENDS[(BACKENDS.index(settings.backups[0]) + 1) % len(BACKENDS)]
        soak.stop()
        soak.start(backups=(*settings.backups, new))
        return f"backups also go to {new}"
    old, new = settings.backups
    if settings.restores[0] == old:
        wait_for(lambda: _verified(soak, new), f"a backup of everything in {new}")
        soak.stop()
        soak.start(restores=(new, old))
        return f"stores were restored from {new}"
    world.command("state", "verify", NAME)
    soak.stop()
    soak.start(backups=(new,), restores=(new,))
    return f"backups go to {new} alone"


def _verified(soak: Soak, backend: str) -> bool:
    """True once the backend has every store, and holds the same as the other one."""
    soak.alive()
    said = json.loads(soak.world.command("state", "verify", NAME, "--json", status=None) or '{"stores": []}')
    verdicts = [{each["backend"]: each["digest"] for each in store["backends"]} for store in said["stores"]]
    return bool(verdicts) and all(each.get(backend) and len({str(d) for d in each.values()}) == 1 for each in verdicts)


EVENTS: dict[str, Callable[[Soak], str]] = {
    each.__name__: each
    for each in (
        kill_driver, kill_container, kill_worker, kill_broker, freeze_container, freeze_driver, lose_container,
        stopped_and_left, rival_refused, rival_takes_over, look, stop, set_checkpoint, drain, go_back, begin_again,
        collect, other_slots, other_way, migrate,
    )
}  # fmt: skip
