"""Containers as others see them: their addresses and the settings that start one, their tasks, and their ends.

The assignment of tasks and standbys is pure. The end of a process is what its own machine knows of it, and no more.
"""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import psutil

from penstock.base.documents import Count
from penstock.config.settings import LogFormat
from penstock.host.logs import epitaph, exit_status, page_path
from penstock.host.position_page import Spot, read_page
from penstock.host.posix import ending, machine_id

ProcessId: TypeAlias = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]


@dataclass(frozen=True, slots=True)
class ContainerAddress:
    """The endpoints and process of a container. `incarnation` is random: a restarted process is another incarnation."""

    container: str
    incarnation: str
    machine: str
    """Equal on the same machine only: decides between the socket and the port."""
    pid: ProcessId
    executor_pid: ProcessId
    """Process id of the executor's JVM. Several containers of one executor have the same machine and executor_pid."""
    socket_uri: str
    tcp_uri: str
    log_path: str
    copies: tuple[Count, ...]
    """The tasks that had copies on this host when the container started."""
    executor_id: str
    certificate: str | None = field(default=None, repr=False)
    """The TLS identity of this port; None: the port does not speak TLS."""
    callers: str | None = field(default=None, repr=False)
    """The certificate that callers of this port must present."""

    def uri_from(self, machine: str) -> str:
        return self.socket_uri if machine == self.machine else self.tcp_uri


@dataclass(frozen=True, slots=True)
class Lane:
    """A container and its tasks: what one process serves in a batch, however many tasks the job has."""

    address: ContainerAddress
    tasks: tuple[int, ...]


def lane_of_tasks(lanes: Sequence[Lane]) -> list[int]:
    """The number of the lane of each task."""
    return [lane for _, lane in sorted((task, number) for number, lane in enumerate(lanes) for task in lane.tasks)]


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """The settings that start a container. Sent to its standard input, so that no process list shows the secret."""

    run_id: str
    secret: str = field(repr=False)
    host: str | None
    """The address that its port listens on. None: the one by which Spark knows the executor."""
    log_directory: str
    copies_directory: str | None = None
    """The folder for copies of the job's stores on each host; None: no copies are kept."""
    reached_at: str | None = None
    """The address by which others reach the port, if it differs from `host`."""
    executor_id: str = "driver"
    job: str = ""
    log_format: LogFormat = "text"
    tls: bool = False
    """True if the port speaks TLS. The socket does not: it is on the same host, in a private folder."""
    callers: str | None = field(default=None, repr=False)
    """The certificate that callers of a TLS port must present."""


@dataclass(frozen=True, slots=True)
class LaunchFailure:
    """A container that did not start."""

    executor_id: str
    reason: str


_NAMED = 10


class Distance(IntEnum):
    """The level at which two containers are apart: the lower, the fewer failures take both."""

    HOSTS = 0
    """On two hosts."""
    EXECUTORS = 1
    """On one host, in two executors."""
    CONTAINERS = 2
    """In one executor."""


@dataclass(frozen=True, slots=True)
class ContainerPlace:
    """The machine and executor of a container."""

    host: str
    executor: str
    """Unique in the job."""
    copies: Collection[int] = ()
    """The tasks that had copies on its host when it started."""

    def distance(self, other: ContainerPlace) -> Distance:
        if self.host != other.host:
            return Distance.HOSTS
        return Distance.EXECUTORS if self.executor != other.executor else Distance.CONTAINERS


@dataclass(frozen=True, slots=True)
class Assignment:
    """The container of every task, and the containers of its standbys."""

    homes: Mapping[int, str] = field(default_factory=dict)
    standbys: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Task → the containers that keep its stores warm."""
    leaving: frozenset[str] = field(default=frozenset(), compare=False)
    """Containers that lost their last task or standby. They are called in one more epoch, in which they remove their
    stores."""

    def concerns(self, container: str) -> bool:
        """True if calls go to the container: it has tasks, is a standby, or is leaving."""
        return container in self.leaving or container in self.busy

    @property
    def busy(self) -> frozenset[str]:
        return frozenset(self.homes.values()).union(*self.standbys.values())

    def tasks_in(self, container: str) -> list[int]:
        return sorted(task for task, home in self.homes.items() if home == container)

    def standbys_in(self, container: str) -> list[int]:
        return sorted(task for task, own in self.standbys.items() if container in own)

    def survives_with(self, living: Collection[str]) -> bool:
        """True if each task is in one of these containers, or has a standby in one."""
        return bool(self.homes) and all(
            home in living or any(name in living for name in self.standbys.get(task, ()))
            for task, home in self.homes.items()
        )

    def without_far_standbys(self, places: Mapping[str, ContainerPlace]) -> list[int]:
        """The tasks that have no standby on another executor than their own."""
        return [
            task
            for task, own in self.standbys.items()
            if not own or all(places[self.homes[task]].distance(places[n]) is Distance.CONTAINERS for n in own)
        ]


def moved_to(before: Assignment, after: Assignment, in_the_end: Assignment) -> list[str]:
    """The containers that tasks would move to, in words; empty until all tasks that are to move can.

    Args:
        before: the present assignment.
        after: the assignment with the standbys that are ready.
        in_the_end: the assignment once all of them are.
    """
    if after.homes != in_the_end.homes:
        return []
    moved = {home for task, home in after.homes.items() if before.homes.get(task, home) != home}
    return [f"the standbys of container {name}" for name in sorted(moved)]


def moves_text(before: Mapping[int, str], after: Mapping[int, str], in_place: Collection[int]) -> str:
    """The moves of tasks from one epoch to the next, in words. `in_place`: the tasks whose stores stayed open.

    Example:
        >>> moves_text({0: "a", 1: "b", 2: "b"}, {0: "a", 1: "c", 2: "a"}, [0])
        '2 of 3 tasks moved (1 to container c, 2 to container a); 1 kept its stores'
    """
    moved = defaultdict[str, list[str]](list)
    for task, home in sorted(after.items()):
        if before.get(task) != home:
            moved[home].append(str(task))
    count = sum(map(len, moved.values()))
    where = ", ".join(
        f"{', '.join(tasks[:_NAMED])}{', ...' if len(tasks) > _NAMED else ''} to container {home}"
        for home, tasks in moved.items()
    )
    kept = f"{len(in_place)} kept {'its' if len(in_place) == 1 else 'their'} stores"
    return f"{count} of {len(after)} tasks moved{f' ({where})' if where else ''}; {kept}"


def assign(
    tasks: int,
    before: Assignment,
    places: Mapping[str, ContainerPlace],
    standbys: int = 0,
    ready: Mapping[int, Collection[str]] | None = None,
) -> Assignment:
    """A container for every task, and its standbys.

    Without standbys it is what `assign_tasks` says. With them, this is only where a task is to be in the end. A task
    whose container is lost goes to a standby. One whose container lives moves only to a standby that is ready, which
    is therefore made in the container that the task is to be in.

    Args:
        before: the assignment until now.
        places: the containers that live; not empty.
        standbys: how many each task is to have, as far as there are containers.
        ready: by task, the standbys that have a copy of every store.
    """
    copies = {name: place.copies for name, place in places.items()}
    goal = assign_tasks(tasks, before.homes, copies)
    if not standbys:
        return Assignment(goal)
    ready = ready or {}
    homes: dict[int, str] = {}
    load = Counter(home for home in before.homes.values() if home in places)
    for task in range(tasks):
        home = before.homes.get(task)
        able = [name for name in before.standbys.get(task, ()) if name in places]
        warm = ready.get(task, ())
        if home in places:
            homes[task] = goal[task] if goal[task] in warm else str(home)
        elif able:
            homes[task] = min(able, key=lambda name: (name not in warm, load[name], name))
            load[homes[task]] += 1
        else:
            homes[task] = goal[task]
    then = assign_tasks(tasks, homes, copies)
    after = Assignment(homes, _standbys(homes, then, before.standbys, places, standbys))
    return replace(after, leaving=(before.busy - after.busy).intersection(places))


def _standbys(
    homes: Mapping[int, str],
    goal: Mapping[int, str],
    before: Mapping[int, tuple[str, ...]],
    places: Mapping[str, ContainerPlace],
    count: int,
) -> dict[int, tuple[str, ...]]:
    """First where the task is to be in the end, then as far away as possible, then where its standbys are already."""
    load = Counter(homes.values())
    found: dict[int, tuple[str, ...]] = {}
    for task, home in sorted(homes.items()):
        had = before.get(task, ())

        def preference(name: str, task: int = task, home: str = home, had: Collection[str] = had) -> tuple[object, ...]:
            return name != goal[task], places[home].distance(places[name]), name not in had, load[name], name

        found[task] = tuple(sorted((name for name in places if name != home), key=preference)[:count])
        load.update(found[task])
    return found


def assign_tasks(tasks: int, homes: Mapping[int, str], copies: Mapping[str, Collection[int]]) -> dict[int, str]:
    """Task -> container, for every task.

    A task stays where it is as long as that container lives and has no more than its share. The others go where there
    is a copy of their stores, as far as that leaves the containers evenly loaded, and else to the least loaded one.

    Args:
        homes: where tasks were until now.
        copies: the containers that live, each with the tasks that have copies on its host; not empty.
    """
    load = dict.fromkeys(sorted(copies), 0)
    most = -(-tasks // len(load))
    found: dict[int, str] = {}
    for task, home in sorted(homes.items()):
        if home in load and load[home] < most:
            found[task] = home
            load[home] += 1
    homeless = [task for task in range(tasks) if task not in found]
    # First those that a copy waits for, so that no other task takes its place.
    for task in sorted(homeless, key=lambda task: not any(task in own for own in copies.values())):
        near = [name for name in load if task in copies[name] and load[name] < most]
        home = min(near or load, key=lambda name: (load[name], name))
        found[task] = home
        load[home] += 1
    return found


_LOGGED_SECONDS = 3.0
"""Longest delay between the end of a process and the entry in its log."""


@dataclass(frozen=True, slots=True)
class UnknownEnd:
    """The reason why nobody knows how a container ended."""

    why: str


@dataclass(frozen=True, slots=True)
class KnownEnd:
    """The end of a container, as its host knows it."""

    words: tuple[str, ...]
    """Its exit and its last words."""
    status: int | None
    """The exit status, a signal as a negative number; None if it is not known."""
    spots: tuple[Spot, ...] = ()
    """The work of its attempts."""
    is_known: bool = True
    """False if its host could not say it: the words are all that there is."""


Ending: TypeAlias = KnownEnd | UnknownEnd


@dataclass(frozen=True, slots=True)
class ProcessDeath:
    """The end of a process that processes messages: a container, a Python worker of Spark, the direct worker."""

    name: str
    """The process, in words that are not used for another one."""
    status: int | None
    """The exit status, a signal as a negative number; None if it is not known."""
    spots: tuple[Spot, ...]
    """The work of its attempts."""

    @property
    def by_itself(self) -> bool:
        """True if what it did has ended it, False if somebody else may have: SIGKILL is the kernel's for a process out
        of memory, and everybody else's."""
        return self.status is not None and self.status not in _FROM_OUTSIDE

    @property
    def how(self) -> str:
        return "ended" if self.status is None else ending(self.status)


_FROM_OUTSIDE = frozenset(-number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))


def ending_of(address: ContainerAddress, *, is_lost: bool = True) -> Ending:
    """The end of the container. The caller must be on the same machine.

    `is_lost`: the process may have ended this very moment, so wait a short while for its end.
    """
    if address.machine != machine_id():
        return UnknownEnd("Spark ran no task on its host")
    log, lives = Path(address.log_path), _lives(address.pid)
    status = exit_status(log, _LOGGED_SECONDS if is_lost or not lives else 0.0)
    if status is None and _lives(address.pid):
        return UnknownEnd("its process has not ended")
    return KnownEnd(tuple(epitaph(address.pid, log)), status, read_page(page_path(log)))


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
