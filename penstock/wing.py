"""Wings: what a feature adds to the kernel, as one value.

A wing has a name, and any of these: a part in each start of a job, in the driver of a run and in each container, calls
from the driver to containers, a section of each checkpoint's record, keys of the configuration, facts for `penstock
status`, and commands. The kernel goes over all wings wherever one of them may take part, and knows none of them. A wing
knows the kernel and no other wing.

The wings that Penstock brings are in the table `penstock.base.plugins.WINGS`. Every installed distribution may bring
more, as entry points of the group `penstock.wings`; a wing has to be installed on every host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from penstock.base.plugins import OUTSIDE_WINGS, WINGS, from_outside, load
from penstock.config.key import Settings
from penstock.errors import ConfigError
from penstock.wire.calls import CALLS, Call

KERNEL_SECTIONS = ("query", "streams", "time")


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

    def part(self, place: str, *given: Any) -> Any:
        """Make one of the parts, which knows the name of its wing from then on.

        Args:
            place: `start`, `driver` or `container` of this wing.
            given: the arguments of its class.
        """
        part = load(place)(*given)
        part.wing = self.name
        return part


@cache
def wings() -> tuple[Wing, ...]:
    """All wings of this installation: Penstock's own in the order of their table, then the others by name.

    Raises:
        ConfigError: a wing from outside cannot be imported or is no `Wing`, or two have one name.
    """
    own = tuple(load(place) for place in WINGS.values())
    others = from_outside(OUTSIDE_WINGS)
    for name, wing in others.items():
        if not isinstance(wing, Wing):
            raise ConfigError(f"the entry point `{name}` of `{OUTSIDE_WINGS}` is a {type(wing).__name__}, and no Wing")
    found: dict[str, Wing] = {}
    for wing in (*own, *others.values()):
        if wing.name in found:
            raise ConfigError(f"two wings have the name `{wing.name}`: remove one of the distributions that bring them")
        found[wing.name] = wing
    return tuple(found.values())


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
