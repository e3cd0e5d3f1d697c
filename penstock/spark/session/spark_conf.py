"""The `spark.*` keys that were given to Spark itself: to spark-submit, in PYSPARK_SUBMIT_ARGS, in spark-defaults.conf.

They count more than Penstock's own defaults, and less than the configuration of the job.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home

from penstock.config.sources import PropertiesError, parse_properties
from penstock.errors import ConfigError

_OPTIONS = {
    "--master": "spark.master",
    "--name": "spark.app.name",
    "--driver-java-options": "spark.driver.extraJavaOptions",
    "--py-files": "spark.submit.pyFiles",
    "--files": "spark.files",
}
"""Options of spark-submit → the key of the same meaning, for keys that Penstock sets or reads."""
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def outside_conf(environ: Mapping[str, str], script: str) -> dict[str, str]:
    """The keys that were given to Spark.

    Args:
        environ: the environment of this process.
        script: the path of the running script. spark-submit names the application after it by default.

    Raises:
        ConfigError: a file of Spark's cannot be read.
    """
    if "PYSPARK_GATEWAY_PORT" not in environ:
        return conf_of_launch(environ, Path(_find_spark_home()))
    # spark-submit has started the JVM and this process; the JVM has read everything.
    SparkContext._ensure_initialized()  # noqa: SLF001 - what a session would do first
    found = dict(SparkConf().getAll())
    if found.get("spark.app.name") == Path(script).name:
        del found["spark.app.name"]
    return found


def conf_of_launch(environ: Mapping[str, str], spark_home: Path) -> dict[str, str]:
    """The keys that a JVM started by this process will read: the command line, then the properties files."""
    arguments = shlex.split(environ.get("PYSPARK_SUBMIT_ARGS", ""))
    options = list(_options(arguments))
    found = {"spark.master": environ["MASTER"]} if environ.get("MASTER") else {}
    own = [value for option, value in options if option == "--properties-file"]
    if not own or "--load-spark-defaults" in arguments:
        folder = Path(environ.get("SPARK_CONF_DIR") or spark_home / "conf")
        found |= _read(folder / "spark-defaults.conf")
    for file in own:
        found |= _read(Path(file))
    for option, value in options:
        if option in ("--conf", "-c"):
            key, _, text = value.partition("=")
            found[key.strip()] = text
        elif option in _OPTIONS:
            found[_OPTIONS[option]] = value
    return found


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if equals and name.startswith("--"):
            yield name, value
        elif argument.startswith("-") and place + 1 < len(arguments):
            yield argument, arguments[place + 1]


def _read(file: Path) -> dict[str, str]:
    """The `spark.*` keys of a properties file; none if there is no such file."""
    if not file.exists():
        return {}
    try:
        entries = parse_properties(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, PropertiesError) as error:
        raise ConfigError(f"Spark's configuration file `{file}` cannot be read: {error}") from error
    return {entry.key: entry.value.strip() for entry in entries if entry.key.startswith("spark.")}


def use_python_of(conf: Mapping[str, str], default: str | None) -> None:
    """Have the next session's workers run with the Python that the keys name. PySpark itself reads only the environment
    if the driver was not started by spark-submit."""
    if python := conf.get("spark.pyspark.python"):
        os.environ["PYSPARK_PYTHON"] = python
    elif default is not None:
        os.environ.setdefault("PYSPARK_PYTHON", default)


def is_true(conf: Mapping[str, str], key: str) -> bool:
    """True if a key is present and true."""
    return conf.get(key, "false").strip().lower() == "true"


def seconds(text: str) -> float:
    """A time of Spark's configuration in seconds, its default unit."""
    found = re.fullmatch(r"\s*(\d{1,18})\s*([a-z]*)\s*", text.lower())
    if found is None:
        return 0  # Spark refuses it
    return int(found[1]) * _UNITS.get(found[2], 1)
