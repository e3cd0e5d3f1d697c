"""Reads, merges and checks all sources of a configuration. Reports all problems at once."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from penstock.api.ssp import SystemStream
from penstock.base.plugins import SYSTEMS
from penstock.base.secrets import is_secret
from penstock.config import keys
from penstock.config.foreign import foreign
from penstock.config.key import ResolvedValues
from penstock.config.kinds import RefusedError, absolute, is_own
from penstock.config.model import JobConfig
from penstock.config.optional_settings import MetricsSettings
from penstock.config.settings import ROOT_OPTIONS, JobSettings, StoreSettings, SystemKeys, TaskSettings
from penstock.config.sources import Setting, SourceError, from_assignments, from_file, from_mapping, refers, resolve
from penstock.errors import ConfigError

_JOB_NAME = JobSettings.name.name
_SECTIONS = "jobs."
"""Before a job's name and a key: the value is for that job alone."""


def load_config(
    file: str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
    assignments: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    default_job_name: str | None = None,
    stores: Collection[str] | None = None,
) -> JobConfig:
    """The configuration of a job. Later sources win: defaults, `file`, `overrides`, `assignments`.

    Args:
        file: YAML (nested or flat) or Java properties, by its ending.
        overrides: keys and values, nested or flat; None stands for the key's default.
        assignments: `key=value` texts, as given with `-c`. An empty value stands for the key's default.
        environ: the variables that may have `PENSTOCK_HOME`; the process's environment if None.
        default_job_name: the name of the job if no source gives `job.name`.
        stores: the application's stores, if they are known; a key of any other store is a mistake.

    Raises:
        ConfigError: one or more values are wrong; the message lists all of them with their origins.

    Example:
        >>> config = load_config(overrides={"job.name": "flights"}, assignments=["task.commit.ms=10s"])
        >>> config.job.name, config.task.commit_ms, config.job.retry_max
        ('flights', 10000, 5)
    """
    problems: list[str] = []
    sources = [
        from_file(Path(file), problems) if file is not None else [],
        from_mapping(overrides or {}, "dict", problems),
        from_assignments(assignments, problems),
    ]
    merged = _merged(sources, default_job_name, problems)
    unknown: list[str] = []
    values = _values(merged, problems, unknown)
    if stores is not None:
        unknown += _undeclared_stores(merged, stores)
    if _JOB_NAME not in merged:
        problems.append(f"`{_JOB_NAME}` is missing: set it in the configuration, or give the application a name")
    if problems:  # what hangs together is checked once each value can be read
        _raise([*problems, *unknown])
    hidden = frozenset(key for key in values if merged[key].hidden)
    origins = {key: merged[key].origin for key in values}
    config = JobConfig(ResolvedValues(_home(environ), values), origins=origins, hidden=hidden)
    _raise([*unknown, *_unknown_systems(config), *_never_again(config)])
    return config


def _merged(
    sources: Sequence[Sequence[Setting]], default_job_name: str | None, problems: list[str]
) -> dict[str, Setting]:
    """Key → the setting that counts: the last one of the sources. The job's name is found first, because it chooses the
    section of each source."""
    named = [each.raw for source in sources for each in source if each.key == _JOB_NAME and isinstance(each.raw, str)]
    settings = [each for source in sources for each in _of_job(source, named[-1] if named else default_job_name)]
    merged = {setting.key: _resolved(setting, problems) for setting in {each.key: each for each in settings}.values()}
    given = merged.get(_JOB_NAME)
    if default_job_name is not None and (given is None or given.raw is None):
        merged[_JOB_NAME] = Setting(_JOB_NAME, default_job_name, "the application's name")
    return merged


def _of_job(source: Sequence[Setting], name: str | None) -> list[Setting]:
    """The settings of a source for a job of this name: first those of all jobs, then those in the job's section. The
    sections of other jobs are left out, whatever is in them."""
    common = [each for each in source if not each.key.startswith(_SECTIONS)]
    prefix = f"{_SECTIONS}{name}."
    own = [replace(each, key=each.key.removeprefix(prefix)) for each in source if each.key.startswith(prefix)]
    return [*common, *own]


def _resolved(setting: Setting, problems: list[str]) -> Setting:
    """Replace the value's references. Only the values that count are resolved: a command may be slow, or have
    effects."""
    if setting.raw is None or not refers(setting.key, setting.raw):
        return setting
    try:
        return replace(setting, raw=resolve(setting.key, setting.raw), hidden=True)
    except SourceError as error:
        problems.append(f"`{setting.key}` ({setting.origin}): {error}")
        return replace(setting, raw=None)


def _home(environ: Mapping[str, str] | None) -> Path:
    return absolute((os.environ if environ is None else environ).get("PENSTOCK_HOME") or ".penstock")


def _values(merged: Mapping[str, Setting], problems: list[str], unknown: list[str]) -> dict[str, object]:
    """The typed values of all known keys; wrong values go to `problems`, unknown keys to `unknown`."""
    values: dict[str, object] = {}
    for setting in merged.values():
        match = keys.find(setting.key)
        if match is None or (match.key is SystemKeys.option and not _takes(merged, match.subject)):
            if setting.raw is not None or not keys.is_section(setting.key):
                factory = None if match is None else SystemKeys.factory.full(match.subject.partition(".")[0])
                unknown.append(_unknown(setting, None if factory in merged else factory))
            continue
        if wrong_name := keys.fault(match):
            problems.append(f"`{setting.key}` ({setting.origin}): {wrong_name}")
        if setting.raw is None:
            continue
        try:
            values[setting.key] = match.key.kind.parse(setting.raw)
        except RefusedError as error:
            reason = f" ({error})" if str(error) else ""
            hides = setting.hidden or is_secret(setting.key)
            expected = match.key.kind.expected + ("" if hides else reason)
            problems.append(f"`{setting.key}` = `{setting.shown}` ({setting.origin}): expected {expected}")
    return values


def _undeclared_stores(merged: Mapping[str, Setting], stores: Collection[str]) -> list[str]:
    origins: dict[str, str] = {}
    for setting in merged.values():
        match = keys.find(setting.key)
        if match is not None and match.key.prefix == "stores." and match.subject and match.subject not in stores:
            origins.setdefault(match.subject, setting.origin)
    declared = ", ".join(f"`{store}`" for store in sorted(stores)) or "none"
    return [
        f"`stores.{name}.*` is configured, but the application has the stores: {declared} ({origin})"
        for name, origin in sorted(origins.items())
    ]


def _takes(merged: Mapping[str, Setting], subject: str) -> bool:
    """True if the option is left to its system, which checks its options itself. `local` and `memory` have only those
    that are keys here, and nobody gives a system of Penstock the root."""
    name, _, option = subject.partition(".")
    given = merged.get(SystemKeys.factory.full(name))
    try:
        factory = "" if given is None or given.raw is None else SystemKeys.factory.kind.parse(given.raw)
    except RefusedError:
        return False
    return is_own(factory) or (factory in SYSTEMS.keys() - {"local", "memory"} and option not in ROOT_OPTIONS)


def _unknown(setting: Setting, missing: str | None) -> str:
    """The problem of an unknown key. Leaves out its value, because a mistyped key may hold a secret.

    `missing`: the key of the factory that would say which options the system has."""
    if (advice := foreign(setting.key)) is not None:
        return f"`{setting.key}` ({setting.origin}) {advice}"
    if missing is not None and keys.nearest(setting.key) is None:
        return f"unknown key `{setting.key}` ({setting.origin}): if it is an option of the system, set `{missing}` too"
    near = keys.nearest(setting.key)
    hint = f"did you mean `{near}`?" if near else "the command `config keys` lists all keys"
    return f"unknown key `{setting.key}` ({setting.origin}): {hint}"


def _raise(problems: Sequence[str]) -> None:
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        raise ConfigError(f"{len(problems)} mistakes in the configuration:{lines}")


def _unknown_systems(config: JobConfig) -> list[str]:
    problems = []
    for name in config.system_names:
        try:
            config.system(name)
        except ConfigError as error:
            origin = next(config.origin(key) for key in config.origins if key.startswith(f"systems.{name}."))
            problems.append(f"{error} ({origin})")
    streams: list[tuple[str, SystemStream]] = []
    if config.task.dead_letter_stream is not None:
        streams.append((TaskSettings.dead_letter_stream.name, config.task.dead_letter_stream))
    streams += [(TaskSettings.broadcast_inputs.name, each.stream) for each in config.task.broadcast_inputs]
    for key in config.origins:
        match = keys.find(key)
        if match and match.key.prefix == "streams.":
            streams.append((key, SystemStream.parse(match.subject)))
        elif match and match.key is StoreSettings.changelog:
            streams.append((key, config.store(match.subject).changelog))
        elif match and match.key is StoreSettings.side_inputs:
            streams += [(key, stream) for stream in config.store(match.subject).side_inputs]
    for key, stream in streams:
        if stream.system not in config.system_names:
            known = ", ".join(config.system_names)
            problems.append(f"`{key}` ({config.origin(key)}): there is no system `{stream.system}`; known: {known}")
    return problems


def _never_again(config: JobConfig) -> list[str]:
    """Problems that let a job run, but write checkpoints from which no start with this configuration can begin."""
    problems = []
    task = config.task
    write, read = TaskSettings.checkpoint_write_versions, TaskSettings.checkpoint_read_versions
    if set(task.checkpoint_write_versions).isdisjoint(task.checkpoint_read_versions):
        problems.append(
            f"`{read.name}` = `{read.kind.text(task.checkpoint_read_versions)}` ({config.origin(read.name)}) has none "
            f"of the versions that `{write.name}` = `{write.kind.text(task.checkpoint_write_versions)}` "
            f"({config.origin(write.name)}) writes: no start could read a checkpoint of this job"
        )
    halves = [MetricsSettings.prometheus_certificate.name, MetricsSettings.prometheus_key.name]
    if len(given := [key for key in halves if key in config.origins]) == 1:
        (lacking,) = {*halves} - {*given}
        problems.append(f"`{given[0]}` ({config.origin(given[0])}): TLS needs `{lacking}` too")
    places = {f"stores.{name}": name for name in config.store_names}
    for place, name in ({"stores": ""} | places).items():
        settings = config.store(name)
        key = next(
            (key for key in (f"{place}.restore.factories", f"{place}.backup.factories") if key in config.origins), None
        )
        if key is not None and set(settings.restore_factories).isdisjoint(settings.backup_factories):
            problems.append(
                f"`{key}` ({config.origin(key)}): none of the backends that are restored from "
                f"({', '.join(settings.restore_factories)}) is backed up to ({', '.join(settings.backup_factories)}). "
                f"Add one of the latter to `{place}.restore.factories`"
            )
    return problems
