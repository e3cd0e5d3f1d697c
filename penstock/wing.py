"""Wings: what a feature adds to the kernel, as one value.

A wing has a name, and any of these: a part in each start of a job, in the driver of a run and in each container, calls
from the driver to containers, a section of each checkpoint's record, keys of the configuration, facts for `penstock
status`, and commands. The kernel goes over all wings wherever one of them may take part, and knows none of them. A wing
knows the kernel and no other wing.

The wings that Penstock brings are in the table `penstock.base.plugins.WINGS`. Every installed distribution may bring
more, as entry points of the group `penstock.wings`; a wing has to be installed on every host. What such a wing declares
is checked when it is found, before anything of it is used. Its parts are not imported for that: a part that cannot be
imported, or is of another class, is refused at its first use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar, cast

from penstock.base import plugins
from penstock.base.plugins import COMMANDS, OUTSIDE_WINGS, WINGS, FromOutside, from_outside, has_module
from penstock.config.key import AnyKey, Settings
from penstock.config.keys import faults_of, keys_of
from penstock.config.settings import KEYS
from penstock.errors import ConfigError
from penstock.wire.protocol import CALLS, Call

KERNEL_SECTIONS = ("labels", "query", "streams", "time")
_PLACE = re.compile(r"(\w+(?:\.\w+)*):\w+")
P = TypeVar("P")


@dataclass(frozen=True)
class Wing:
    """A feature beside the kernel. The parts are named as `module:attribute`, so that a process loads only those
    that it needs.

    Example:
        >>> Wing("audit", driver="audit.driver:AuditDriver").calls
        ()
    """

    name: str
    """The name of the wing, of its section, its state in heartbeats, and its facts."""
    calls: tuple[Call[Any, Any], ...] = ()
    """Its requests to containers. Its part in the container answers them."""
    keys: type[Settings] | None = None
    """Its options. Penstock's own wings have theirs in `penstock.config.settings`, in the order of the reference."""
    start: str = ""
    """A subclass of `penstock.start.part.StartPart`."""
    driver: str = ""
    """A subclass of `penstock.driver.part.DriverPart`."""
    container: str = ""
    """A subclass of `penstock.container.part.ContainerPart`."""
    on_host: Mapping[str, str] = field(default_factory=dict)
    """By the name of a host, such as `spark`: a function that makes what the part in the driver needs of that host
    (`RunContext.tools`). The host gives the first argument, if it has one to give; the part gives the others."""
    facts: str = ""
    """A function of the object store, the job's paths, and the id of the present run or None, that returns
    `penstock.facts.Facts`."""
    commands: str = ""
    """A group of commands, as a `typer.Typer`. `penstock <name>` is the command."""
    help: str = ""
    """The line about the commands in `penstock --help`."""

    def part(self, kind: type[P], place: str, *given: Any) -> P:
        """Make one of the parts, which knows the name of its wing from then on.

        Args:
            kind: the class that the part has to be derived from.
            place: `start`, `driver` or `container` of this wing.
            given: the arguments of its class.

        Raises:
            ConfigError: the part cannot be imported, or is of another class.
        """
        cls = self.load(place)
        if not (isinstance(cls, type) and issubclass(cls, kind)):
            raise self.unusable(f"`{place}` is no subclass of {kind.__name__}")
        part: Any = cls(*given)
        part.wing = self.name
        return cast("P", part)

    def load(self, place: str) -> Any:
        """The object at `module:attribute`, a part of the wing. Raises ConfigError, which names the wing, if it cannot
        be imported."""
        try:
            return plugins.load(place)
        except Exception as error:
            raise self.unusable(f"`{place}` cannot be imported, because of {error!r}") from error

    def unusable(self, why: str) -> ConfigError:
        """The error for a part that is not what it has to be."""
        return ConfigError(
            f"the wing `{self.name}` cannot be used here: {why}. Mend the wing, or remove the distribution that brings "
            "it, on every host"
        )

    def places(self) -> Iterator[tuple[str, str]]:
        """The parts that the wing has, each with its place."""
        fields = ("start", "driver", "container", "facts", "commands")
        named = {f"`{name}`": getattr(self, name) for name in fields}
        on_host = {f"`on_host` for `{host}`": place for host, place in self.on_host.items()}
        return ((part, place) for part, place in {**named, **on_host}.items() if place)


@cache
def wings() -> tuple[Wing, ...]:
    """All wings of this installation: Penstock's own in the order of their table, then the others by name.

    Raises:
        ConfigError: a wing from outside cannot be imported, or declares what it may not (`check_outside`).
    """
    return (*_own_wings(), *from_outside(OUTSIDE_WINGS).values())


def _own_wings() -> tuple[Wing, ...]:
    return tuple(plugins.load(place) for place in WINGS.values())


def check_outside(found: Sequence[FromOutside]) -> None:
    """Check what wings of other distributions declare. Nothing of them but their declarations is imported.

    Raises:
        ConfigError: a declaration is malformed, says what cannot be, or takes a name that Penstock or another wing
            has. It names the wing and the distribution.
    """
    keys = dict.fromkeys(KEYS, "Penstock")
    own = (call.name for wing in _own_wings() for call in wing.calls)
    calls = dict.fromkeys((*CALLS, *own), "Penstock")
    for each in found:
        wing, entry = each.value, f"the entry point `{each.name}` of `{OUTSIDE_WINGS}`, by {each.origin},"
        if not isinstance(wing, Wing):
            raise ConfigError(f"{entry} is a {type(wing).__name__}, and no Wing. Mend it, or remove {each.origin}")
        try:
            fault = next(_faults(wing, each.name, keys, calls), None)
        except Exception as error:  # a declaration may hold anything
            fault = f"has a declaration that cannot be read, because of {error!r}"
        if fault is not None:
            raise ConfigError(f"the wing `{wing.name}` {fault}. Mend the wing, or remove {each.origin}")
        keys |= dict.fromkeys(keys_of(wing.keys), f"the wing `{wing.name}`")
        calls |= {call.name: f"the wing `{wing.name}`" for call in wing.calls}


def _faults(wing: Wing, entry: str, keys: Mapping[AnyKey, str], calls: Mapping[str, str]) -> Iterator[str]:
    """The faults of a wing from outside, each as it follows the wing's name. `keys`, `calls`: those of others, each
    with its owner."""
    yield from _faults_of_name(wing.name, entry)
    for part, place in wing.places():
        parsed = _PLACE.fullmatch(str(place))
        if parsed is None:
            yield f"names its {part} as {place!r}, which has not the form `module:attribute`"
        elif not has_module(parsed[1]):
            yield f"names its {part} as `{place}`, and there is no module `{parsed[1]}`"
    yield from _faults_of_calls(wing.calls, calls)
    if wing.calls and not wing.container:
        yield "has calls, and no part in containers (`container`) that answers them"
    if wing.on_host and not wing.driver:
        yield "has `on_host`, and no part in the driver (`driver`) that it is for"
    if wing.keys is not None:
        yield from faults_of(wing.keys, keys)


def _faults_of_name(name: str, entry: str) -> Iterator[str]:
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        yield "has a name that is not made of letters, digits and underscores, beginning with no digit"
    if name in WINGS:
        yield "has the name of a wing of Penstock: give it another one"
    if name in COMMANDS:
        yield f"has the name of the command `penstock {name}`: give it another one"
    if name in KERNEL_SECTIONS:
        yield "has the name of a section that checkpoints have without it: give it another one"
    if name != entry:
        yield f"has the entry point `{entry}`: give both one name"


def _faults_of_calls(calls: Sequence[object], others: Mapping[str, str]) -> Iterator[str]:
    taken = dict(others)
    for call in calls:
        if not isinstance(call, Call):
            yield f"has {call!r} among its `calls`, which is no Call"
        elif call.name in taken:
            yield f"has a call `{call.name}`, and so has {taken[call.name]}: give it another name"
        else:
            taken[call.name] = "the same wing"


@cache
def calls() -> Mapping[str, Call[Any, Any]]:
    """The calls of the kernel and of all wings, by name."""
    return {**CALLS, **{call.name: call for wing in wings() for call in wing.calls}}


def known_sections() -> frozenset[str]:
    """The sections of checkpoint records that can be restored here: the kernel's, and those of wings."""
    return frozenset((*KERNEL_SECTIONS, *(wing.name for wing in wings())))


def check_wings(wanted: tuple[str, ...], where: str) -> None:
    """Raise ConfigError if a wing is not installed here.

    Args:
        wanted: the names of the wings that a run has.
        where: this process, in words.
    """
    if missing := sorted(set(wanted) - {wing.name for wing in wings()}):
        raise ConfigError(
            f"{where} does not have the wing `{missing[0]}`, which the driver has: install the distribution that "
            "brings it on every host, or remove it from the driver's"
        )
