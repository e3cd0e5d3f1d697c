"""What a configuration says, as plain values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.admin.jobs import NO_JOB
from penstock.api.graph import ApplicationGraph
from penstock.config import keys
from penstock.config.model import JobConfig
from penstock.config.table import JOB_NAME, SYSTEM_FACTORY, SYSTEM_PATH, SYSTEM_TYPE, AnyKey, describe
from penstock.errors import ConfigError, NotFoundError

_SECRET = re.compile(r"(?i)secret|password|passphrase|token|credential|access[.-]?key")
_HIDDEN = "(hidden)"


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """A key, the value that holds (None: nothing does), and where it comes from."""

    key: str
    value: str | None
    origin: str


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """A key as it is declared. `default` is the text a user would write; None if there is none, then `unset` holds."""

    key: str
    expected: str
    default: str | None
    unset: str
    description: str
    source: str


def key_facts(text: str | None = None) -> list[KeyFacts]:
    """Every key there is; with `text`, the key that it is, or else those with it in their name.

    Raises:
        NotFoundError: there is none; it names the nearest key.
    """
    named = None if text is None else keys.find(text)
    found = [key for key in describe() if text is None or text in key.name or (named is not None and key is named.key)]
    if not found:
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
    """Every key without a name in it, those of the systems and (of the application's) stores, and what was given.

    Args:
        config: the configuration, such as that of an open job.
        graph: that of the application, for the keys of its stores; without it they are left out.
    """
    found = {key.name: _value(key, "", config) for key in describe() if not key.is_pattern}
    for key, subject in _named(config, graph):
        found[key.full(subject)] = _value(key, subject, config)
    return [found[name] for name in sorted(found)]


def check_application(graph: ApplicationGraph, config: JobConfig) -> None:
    """What can be known of an application without its streams and without Spark.

    Raises:
        ConfigError: the graph cannot be cut into stages, or systems are not configured; all of these are named.
    """
    from penstock.runtime.topology import plan_topology  # brings Arrow

    plan_topology(graph, config.task.dead_letter_stream)
    systems = {stream.system for stream in (*(op.stream for op in graph.inputs), *(o.stream for o in graph.outputs))}
    problems = [
        f"the application uses the system `{name}`, which is not configured: set `{SYSTEM_FACTORY.full(name)}`"
        for name in sorted(systems - set(config.system_names))
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def _named(config: JobConfig, graph: ApplicationGraph | None) -> Iterator[tuple[AnyKey, str]]:
    for name in config.system_names:
        yield SYSTEM_FACTORY, name
        if config.system(name).factory == "local":
            yield SYSTEM_PATH, name
    for store in graph.stores if graph else ():
        for key in describe():
            if key.is_pattern and key.prefix == "stores.":
                yield key, store.name
    for given in config.resolved.values:
        match = keys.find(given)
        if match is not None and match.subject and match.key is not SYSTEM_TYPE:
            yield match.key, match.subject


def _value(key: AnyKey, subject: str, config: JobConfig) -> EffectiveValue:
    name = key.full(subject)
    if key is SYSTEM_FACTORY:
        return EffectiveValue(name, config.system(subject).factory, _origin(key, subject, config))
    value = config.resolved.find(key, subject)
    if value is None:
        return EffectiveValue(name, None, key.unset or "default")
    text = _HIDDEN if _SECRET.search(name) else key.kind.text(value)
    if key is JOB_NAME and text == NO_JOB and config.origin(name) == "the application's name":
        return EffectiveValue(name, None, key.unset)
    return EffectiveValue(name, text, _origin(key, subject, config))


def _origin(key: AnyKey, subject: str, config: JobConfig) -> str:
    """The origin of the value that holds, and the key it was given under if that is another one."""
    asked: AnyKey | None = key
    while asked is not None:
        name = asked.full(subject if asked.is_pattern else "")
        if name in config.origins:
            return config.origin(name) if asked is key else f"{config.origin(name)}, as `{name}`"
        asked = asked.fallback
    return "default"
