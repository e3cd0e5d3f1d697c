"""The configuration of a job as frozen, typed values, and the classes that it names as `module:Class`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.plugins import load
from penstock.base.secrets import RootKeys
from penstock.config import keys
from penstock.config.key import AnyKey, Settings
from penstock.config.optional_settings import MetricsSettings, SchemaRegistrySettings, SideInputSettings, TableSettings
from penstock.config.settings import (
    DEFAULT_SYSTEM,
    ROOT_OPTIONS,
    ContainerSettings,
    JobSettings,
    OtherSettings,
    StateSettings,
    StoreSettings,
    StreamSettings,
    SystemKeys,
    TaskSettings,
)
from penstock.errors import ConfigError

_HELD = "penstock.system.held:HeldSystem"
HELD_FACTORY, HELD_PATH = "held.factory", "held.path"
"""The options of a system that a shadow reads: its real factory, and the folder of what is written."""


@dataclass(frozen=True, slots=True)
class SystemSettings:
    """`systems.<name>.*`."""

    name: str
    factory: str
    """A short name, or `module:Class`."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options that only the system itself understands, by the rest of the key."""
    root: str = field(default="", repr=False)
    """`job.root`, whose objects have signatures of these keys."""
    root_keys: RootKeys = field(default_factory=RootKeys)

    @property
    def rooted(self) -> Mapping[str, str]:
        """The options, with those of the job's root."""
        given = zip(ROOT_OPTIONS, (self.root, self.root_keys.current, self.root_keys.previous), strict=True)
        return {**self.options, **{option: text for option, text in given if text is not None}}


@dataclass(frozen=True)
class JobConfig(Settings):
    """A checked configuration. Immutable, picklable. Compared by its values, not by their origins."""

    origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    hidden: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    """The keys whose values came from a file, the environment or a command: they are never shown."""

    @property
    def home(self) -> Path:
        """The folder of defaults: `PENSTOCK_HOME`, or `.penstock` in the working directory at load."""
        return self.resolved.home

    @property
    def job(self) -> JobSettings:
        return JobSettings(self.resolved)

    @property
    def container(self) -> ContainerSettings:
        return ContainerSettings(self.resolved)

    @property
    def task(self) -> TaskSettings:
        return TaskSettings(self.resolved)

    @property
    def state(self) -> StateSettings:
        return StateSettings(self.resolved)

    @property
    def metrics(self) -> MetricsSettings:
        return MetricsSettings(self.resolved)

    @property
    def side_inputs(self) -> SideInputSettings:
        return SideInputSettings(self.resolved)

    @property
    def tables(self) -> TableSettings:
        return TableSettings(self.resolved)

    @property
    def schema_registry(self) -> dict[str, str]:
        """The options of the client of registries, `url` among them."""
        prefix = SchemaRegistrySettings.option.prefix
        found = self.resolved.values.items()
        return {key.removeprefix(prefix): str(value) for key, value in found if key.startswith(prefix)}

    @property
    def run_id(self) -> str | None:
        """The name of the run, as the deployer chose it; None if it has no name."""
        return OtherSettings(self.resolved).run_id

    @property
    def spark(self) -> dict[str, str]:
        """Every `spark.*` key that was given, untouched; a copy."""
        return {key: str(value) for key, value in self.resolved.values.items() if key.startswith("spark.")}

    @property
    def store_names(self) -> tuple[str, ...]:
        """The stores that the configuration names, so that one the application lacks can be refused."""
        return self._subjects("stores.")

    @property
    def system_names(self) -> tuple[str, ...]:
        """All systems: `local`, and those that the configuration names."""
        return tuple(sorted({DEFAULT_SYSTEM, *(each.partition(".")[0] for each in self._subjects("systems."))}))

    def with_columns(self, stores: Iterable[str]) -> JobConfig:
        """The same, in which these stores are kept in columns if nothing else is given for them."""
        given = {StoreSettings.factory.full(name): "columns" for name in stores}
        return replace(self, resolved=replace(self.resolved, values={**given, **self.resolved.values}))

    def of_job(self, name: str, job_id: str) -> JobConfig:
        """The same for another job. What is named after the job has other names."""
        given = {JobSettings.name.full(): name, JobSettings.id.full(): job_id}
        return replace(self, resolved=replace(self.resolved, values={**self.resolved.values, **given}))

    def without_resets(self) -> JobConfig:
        """The same, in which no input is reset (`samza.reset.offset`)."""
        name = StreamSettings.reset_offset.name.partition(">")[2]
        values = {key: value for key, value in self.resolved.values.items() if not key.endswith(name)}
        return replace(self, resolved=replace(self.resolved, values=values))

    def store(self, name: str) -> StoreSettings:
        return StoreSettings(self.resolved, name)

    def stream(self, stream: SystemStream) -> StreamSettings:
        return StreamSettings(self.resolved, str(stream))

    @property
    def rooted_backends(self) -> tuple[str, ...]:
        return self._subjects(StateSettings.backend_root.prefix)

    def backend_root(self, name: str) -> str:
        return StateSettings(self.resolved, name).backend_root

    def system(self, name: str) -> SystemSettings:
        """The settings of a system. Raises ConfigError if there is no such system, or its factory is not given."""
        known, given = self.system_names, SystemKeys(self.resolved, name)
        if name not in known:
            raise ConfigError(
                f"there is no system `{name}`; known: {', '.join(known)}; set `{SystemKeys.factory.full(name)}`"
            )
        factory = given.factory or ("local" if name == DEFAULT_SYSTEM else None)
        if factory is None:
            key = SystemKeys.factory
            raise ConfigError(f"`{key.full(name)}` is missing: expected {key.kind.expected}")
        prefix, found = f"systems.{name}.", self.resolved.values.items()
        options = {key.removeprefix(prefix): str(value) for key, value in found if _is_option(key, prefix)}
        if factory == "local":
            options["path"] = str(given.path)
        if self.job.shadow_enabled:
            options |= {HELD_FACTORY: factory, HELD_PATH: str(self.job.shadow_folder / name)}
            factory = _HELD
        return SystemSettings(name, factory, options, self.job.root, self.job.root_keys)

    @property
    def exactly_once_streams(self) -> tuple[SystemStream, ...]:
        return tuple(each for each in self._streams(StreamSettings.output_guarantee) if self.stream(each).exactly_once)

    @property
    def retained_streams(self) -> tuple[SystemStream, ...]:
        return self._streams(StreamSettings.retention_ms, StreamSettings.retention_bytes)

    def flat(self) -> dict[str, str]:
        """The given values, sorted by key, in the form `load_config` reads back; defaults are left out."""
        flat = {}
        for key, value in sorted(self.resolved.values.items()):
            match = keys.find(key)
            flat[key] = match.key.kind.text(value) if match else str(value)
        return flat

    def for_tasks(self) -> dict[str, str]:
        """The configuration as tasks see it: `flat` without possible secrets, the keys of Spark and of the root, and
        the options of systems."""
        registry = SchemaRegistrySettings
        hidden = (SystemKeys.option, registry.url, registry.option, JobSettings.root_key, JobSettings.root_key_previous)
        return {
            key: text
            for key, text in self.flat().items()
            if not (key.startswith("spark.") or ((match := keys.find(key)) and match.key in hidden))
        }

    def origin(self, key: str) -> str:
        """The origin of a flat key's value: `file:line`, `-c`, ...; `default` if it was not given."""
        return self.origins.get(key, "default")

    def changelog_partitions(self, stores: Iterable[str], task: int) -> dict[SystemStreamPartition, str]:
        """Changelog partition → store, for one task."""
        streams = {store: self.store(store).changelog for store in stores}
        return {SystemStreamPartition(each.system, each.stream, task): store for store, each in streams.items()}

    def _streams(self, *settings: AnyKey) -> tuple[SystemStream, ...]:
        found = (keys.find(key) for key in self.resolved.values)
        names = {match.subject for match in found if match and match.key in settings}
        return tuple(SystemStream.parse(name) for name in sorted(names))

    def _subjects(self, prefix: str) -> tuple[str, ...]:
        matches = (keys.find(key) for key in self.resolved.values)
        return tuple(sorted({match.subject for match in matches if match and match.key.prefix == prefix}))


def _is_option(key: str, prefix: str) -> bool:
    match = keys.find(key) if key.startswith(prefix) else None
    return match is not None and match.key in (SystemKeys.option, SystemKeys.path)


T = TypeVar("T")


def named_class(name: str, base: type[T], called: str, where: str) -> type[T]:
    """The class `module:Class`.

    Args:
        base: the class must be a subclass of this.
        called: the public name of `base`.
        where: begins the error: the place that names the class.

    Raises:
        ConfigError: its module cannot be imported or has no such class, or it is not a subclass of `base`.

    Example:
        >>> named_class("collections:Counter", dict, "dict", "an example")
        <class 'collections.Counter'>
    """
    try:
        found = load(name)
    except Exception as error:  # importing a module runs its code
        raise ConfigError(
            f"{where} cannot be loaded: {type(error).__name__}: {error}. The module must be importable by the driver "
            "and on every host; `spark.submit.pyFiles` ships it there"
        ) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{where} is not a subclass of {called}")
    return found
