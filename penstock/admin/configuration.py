"""The keys and values of a configuration, as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from penstock.admin.jobs import NO_JOB
from penstock.base.secrets import is_secret, without_secrets
from penstock.config import keys
from penstock.config.foreign import foreign
from penstock.config.key import AnyKey
from penstock.config.model import JobConfig
from penstock.config.settings import JobSettings, StoreSettings, SystemKeys
from penstock.errors import NotFoundError
from penstock.facts import Column
from penstock.graph.specs import ApplicationGraph
from penstock.side.wing import SideStoreFacts
from penstock.start.job_streams import JobStreams
from penstock.start.part import complete, start_parts
from penstock.system.registry import open_systems

_HIDDEN = "(hidden)"


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """A key, its effective value (None: it has none), and the origin of the value."""

    key: Annotated[str, Column("key")]
    value: Annotated[str | None, Column("value")]
    origin: Annotated[str, Column("origin")]


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """The declaration of a key. `default` is a text as a user would write it; None if the key has no default, which
    `unset` then explains."""

    key: Annotated[str, Column("key")]
    expected: str
    default: Annotated[str | None, Column("default", of=lambda each: each.default or each.unset or None)]
    unset: str
    description: Annotated[str, Column("meaning")]
    source: Annotated[str, Column("from")]


def key_facts(text: str | None = None) -> list[KeyFacts]:
    """The declarations of the keys.

    Args:
        text: a key, or a part of the names of keys; None for all keys.

    Raises:
        NotFoundError: there is no such key; the message names the nearest one.

    Example:
        >>> [(each.key, each.default) for each in admin.key_facts("task.commit.ms")]
        [('task.commit.ms', '60000')]
    """
    named = None if text is None else keys.find(text)
    found = [
        key for key in keys.describe() if text is None or text in key.name or (named is not None and key is named.key)
    ]
    if not found:
        if text is not None and (advice := foreign(text)) is not None:
            raise NotFoundError(f"`{text}` {advice}")
        near = keys.nearest(text or "")
        hint = f"did you mean `{near}`?" if near else "`penstock config keys` lists all of them"
        raise NotFoundError(f"there is no key `{text}`: {hint}")
    return [
        KeyFacts(
            key.name,
            key.kind.expected,
            key.default,
            f"that of `{key.fallback.name}`" if key.fallback else key.unset,
            key.description,
            key.source,
        )
        for key in found
    ]


def effective_values(config: JobConfig, graph: ApplicationGraph | None) -> list[EffectiveValue]:
    """The effective values of all keys: those without a name in them, those of systems and stores, and those given.

    Values of keys that may be secret are hidden.

    Args:
        config: the configuration, such as that of an open job.
        graph: the application's graph, for the keys of its stores; None to leave these out.

    Raises:
        ConfigError: the configuration contradicts the application.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     values = {each.key: each for each in admin.effective_values(job.config, None)}
        >>> values["task.commit.ms"]
        EffectiveValue(key='task.commit.ms', value='60000', origin='default')
    """
    found = {key.name: _value(key, "", config) for key in keys.describe() if not key.is_pattern}
    for key, subject in _named(config, graph):
        found[key.full(subject)] = _value(key, subject, config)
    for spec in complete(graph, config).side_stores if graph else ():
        found |= {each.key: each for each in _of_side_store(SideStoreFacts.of(spec), config)}
    return [found[name] for name in sorted(found)]


def check_configuration(graph: ApplicationGraph | None, config: JobConfig) -> None:
    """Check the systems of a configuration, and an application if there is one, as a start does, as far as possible
    without streams and without Spark.

    Raises:
        ConfigError: a system refuses an option; the graph cannot be cut into stages; systems are not configured (all of
            these are named); the configuration names stores or outputs that the application does not have, or asks of
            an output what its system cannot do.
    """
    from penstock.graph.topology import plan_topology  # brings Arrow
    from penstock.start.check import check_config  # so does this

    systems = open_systems(config)
    if graph is None:
        return
    graph = complete(graph, config)
    plan_topology(graph, config.task.dead_letter_stream, config.exactly_once_streams)
    JobStreams.used(graph, config, systems)
    check_config(graph, config, start_parts())


def _named(config: JobConfig, graph: ApplicationGraph | None) -> Iterator[tuple[AnyKey, str]]:
    for name in config.system_names:
        yield SystemKeys.factory, name
        if config.system(name).factory == "local":
            yield SystemKeys.path, name
    for store in graph.stores if graph else ():
        for key in keys.describe():
            if key.is_pattern and key.prefix == "stores.":
                yield key, store.name
    for given in config.resolved.values:
        match = keys.find(given)
        if match is not None and match.subject:
            yield match.key, match.subject


def _of_side_store(side: SideStoreFacts, config: JobConfig) -> Iterator[EffectiveValue]:
    """The values for a store that something else fills, where the configuration gives none."""
    for key in (StoreSettings.backup_factories, StoreSettings.restore_factories, StoreSettings.changelog):
        if (name := key.full(side.store)) not in config.origins:
            yield EffectiveValue(name, None, f"no part of checkpoints: {side}")
    if (name := StoreSettings.side_inputs.full(side.store)) not in config.origins:
        yield EffectiveValue(name, ",".join(side.side_inputs) or None, f"the application: {side}")


def _value(key: AnyKey, subject: str, config: JobConfig) -> EffectiveValue:
    name = key.full(subject)
    if key is SystemKeys.factory:
        return EffectiveValue(name, config.system(subject).factory, _origin(key, subject, config))
    value = config.resolved.find(key, subject)
    if value is None:
        return EffectiveValue(name, None, key.unset or "default")
    text = _HIDDEN if is_secret(name) or name in config.hidden else without_secrets(key.kind.text(value))
    if key is JobSettings.name and text == NO_JOB and config.origin(name) == "the application's name":
        return EffectiveValue(name, None, key.unset)
    return EffectiveValue(name, text, _origin(key, subject, config))


def _origin(key: AnyKey, subject: str, config: JobConfig) -> str:
    """The origin of the effective value, with the key if the value was given under another one."""
    asked: AnyKey | None = key
    while asked is not None:
        name = asked.full(subject)
        if name in config.origins:
            return config.origin(name) if asked is key else f"{config.origin(name)}, as `{name}`"
        asked = asked.fallback
    return "default"
